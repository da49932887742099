"""In turn: chunk i goes to worker i modulo n."""

from baechi.dispatch.schedulers.abstract import AbstractScheduler, Left, Share, at_most, whole_number
from baechi.dispatch.schedulers.targets import DevicesLike, Target, targets_of

_AHEAD = 2
"""Chunks that a worker may have at once, so that it need not wait for the next one."""


class RoundRobin(AbstractScheduler):
    """Gives chunks to workers in turn: 7 chunks to 3 workers as 0, 3, 6 and 1, 4 and 2, 5.

    Args:
        num_workers: how many.
        devices: a device for each, or fewer, which workers take in turn; `"cpu"` unless given.
        batch_size: items of a chunk; unless given, rows are divided evenly, and tiles go one by one.

    Raises:
        ValueError: a number is too small.
    """

    def __init__(
        self, num_workers: int, devices: DevicesLike | None = None, *, batch_size: int | None = None
    ) -> None:
        whole_number(num_workers, "num_workers", 1)
        self.batch_size = None if batch_size is None else whole_number(batch_size, "batch_size", 1)
        places = targets_of("cpu" if devices is None else devices)
        super().__init__([_worker(index, places[index % len(places)]) for index in range(num_workers)])
        self._next = 0

    @property
    def depth(self) -> int:
        return _AHEAD * len(self.targets)

    def _choose(self, left: Left) -> Share | None:
        if left.items == left.total:
            self._next = 0  # an input begins
        name = self.targets[self._next % len(self.targets)].name
        if self.chunks[name] >= _AHEAD:
            return None
        self._next += 1
        even = -(-left.total // len(self.targets))
        return Share(name, at_most(left.items, self.batch_size or left.most or even, left.most))


def _worker(index: int, place: Target) -> Target:
    return Target(f"worker {index} on {place.name}", place.device, place.cluster, place.plan)
