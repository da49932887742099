"""Where the ranks of a job meet: once in each process."""

import atexit
import logging
import os
import socket
import sys
from datetime import timedelta
from functools import cache
from itertools import count
from types import TracebackType

import torch
from torch import distributed

from baechi.backend.processes import size_here
from baechi.backend.ranks.limits import limit_s
from baechi.backend.ranks.news import News
from baechi.backend.ranks.watcher import Watcher
from baechi.backend.ranks.wires import Wires
from baechi.backend.real.discover import has_accelerator
from baechi.backend.real.driver import DRIVER
from baechi.errors import RankError
from baechi.torchlib.private.groups import default_store, is_together

logger = logging.getLogger(__name__)


_on_host: list[None] = []


def stay_on_host() -> None:
    """Devices are emulated: this process computes on the CPU, accelerators or not."""
    _on_host[:] = [None]


def own_device() -> torch.device:
    """The device of this process: an accelerator by its local rank, or the CPU where there is none."""
    if _on_host or not has_accelerator():
        return torch.device("cpu")
    local, count = int(os.environ.get("LOCAL_RANK", "0")), DRIVER.count()
    if local >= count:
        raise RankError(
            f"this machine has {count} accelerators, and local rank {local} needs one of its own: start "
            f"{count} processes here (--nproc-per-node {count})"
        )
    return torch.device(f"{DRIVER.kind}:{local}")


def wires() -> Wires:
    """The ways to the other ranks, in as many replicas as were asked for last."""
    return _wires(_replicas[-1])


def divide(replicas: int) -> None:
    """Let the processes be so many replicas from now on; all of them have to say the same."""
    _meet()
    processes, own, store = size_here(), distributed.get_rank(), default_store()
    turn = next(_turns)
    keys = [f"baechi/replicas/{turn}/{rank}" for rank in range(processes)]
    store.set(keys[own], str(replicas))
    store.wait(keys, timedelta(seconds=limit_s()))
    said = [int(store.get(key)) for key in keys]
    if len(set(said)) > 1:
        raise RankError(f"processes were given other numbers of replicas: {said}, by rank", on_all=True)
    _check_divides(replicas, processes)
    _replicas[:] = [replicas]


def _check_divides(replicas: int, processes: int) -> None:
    if replicas < 1 or processes % replicas:
        raise ValueError(
            f"replicas={replicas} needs groups of equal size, and there are {processes} processes: start a "
            f"multiple of {replicas}"
        )


def place_of_replica(replicas: int | None) -> tuple[int, int]:
    """Which replica this process belongs to, and how many there are."""
    number = _replicas[-1] if replicas is None else replicas
    processes = size_here()
    _check_divides(number, processes)
    if number == 1:
        return 0, 1
    own = distributed.get_rank() if is_together() else int(os.environ["RANK"])
    return own // (processes // number), number


_replicas = [1]
_turns = count()
_made: list[Wires] = []


def _meet() -> None:
    if not is_together():
        distributed.init_process_group("nccl" if own_device().type == "cuda" else "gloo")


@cache
def _watcher() -> Watcher:
    """The watcher of this process."""
    number = distributed.get_rank()
    return Watcher(News(number, distributed.get_world_size()), number, socket.gethostname())


@cache
def _wires(replicas: int) -> Wires:
    _meet()
    made = Wires(replicas, _watcher())
    _made.append(made)
    if len(_made) == 1:
        _tell_ends()
    made.open(own_device())
    if made.number:
        logging.getLogger("baechi").setLevel(logging.ERROR)  # rank 0 speaks for all
    logger.warning(
        "one model over %d processes (torchrun)%s; each computes on its own device; give cluster= for a "
        "whole model in each process",
        made.size,
        f", {replicas} replicas of it" if replicas > 1 else "",
    )
    return made


def _tell_ends() -> None:
    """Let others know if this process's script ends, by an error or not."""
    own, before = os.getpid(), sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == own:  # not in a process that it forked
            _made[-1].tell_of(error, trace)
        before(kind, error, trace)

    def end() -> None:
        if os.getpid() == own:
            for wires in reversed(_made):
                wires.end()

    sys.excepthook = hook
    atexit.register(end)
