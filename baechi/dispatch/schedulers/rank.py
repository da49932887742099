"""One device for each process of a distributed job, by the process's rank on its host."""

import os

from baechi.dispatch.schedulers.simple import SimpleScheduler
from baechi.dispatch.schedulers.targets import DevicesLike, targets_of
from baechi.errors import FatalError


class RankScheduler(SimpleScheduler):
    """Gives this process's chunks to its device, as `SimpleScheduler` does.

    Args:
        devices: the devices of this host: a cluster, or a list of names.
        batch_size: items of a chunk; 0 does not divide the input.
        rank: which process of this host this is; `LOCAL_RANK` unless given, which `torchrun` sets.
        ranks: how many processes this host has; `LOCAL_WORLD_SIZE` unless given.
        allow_idle: whether there may be more devices than processes.
        capacity: as `SimpleScheduler` takes it.

    Raises:
        FatalError: rank or ranks are not known: this is no distributed job.
        ValueError: some device would be idle, or a number makes no sense.
    """

    def __init__(
        self,
        devices: DevicesLike,
        batch_size: int = 0,
        *,
        rank: int | None = None,
        ranks: int | None = None,
        allow_idle: bool = False,
        capacity: int | None = None,
    ) -> None:
        targets = targets_of(devices)
        rank, ranks = _known(rank, "LOCAL_RANK"), _known(ranks, "LOCAL_WORLD_SIZE")
        target = targets[device_index(rank, ranks, len(targets), allow_idle=allow_idle)]
        super().__init__(target.plan or target.device, batch_size, capacity=capacity)
        self.targets = (target,)
        self.load = {target.name: 0}
        self.chunks = {target.name: 0}


def device_index(rank: int, ranks: int, devices: int, *, allow_idle: bool = False) -> int:
    """Which device a process takes; several processes may share one."""
    if not 0 <= rank < ranks:
        raise ValueError(f"there is no rank {rank} among {ranks}")
    if ranks < devices and not allow_idle:
        raise ValueError(
            f"{ranks} processes for {devices} devices leave {devices - ranks} idle: start as many as "
            "devices, list fewer devices, or say allow_idle=True"
        )
    return rank % devices


def _known(given: int | None, variable: str) -> int:
    said = os.environ.get(variable)
    if given is None and said is None:
        raise FatalError(
            f"{variable} is not set: RankScheduler is for processes that torchrun started; else give rank= "
            "and ranks=, or use SimpleScheduler"
        )
    return int(said) if given is None else given  # type: ignore[arg-type]
