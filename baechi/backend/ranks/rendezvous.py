"""Where the ranks of a job meet: once in each process."""

import atexit
import logging
import os
import sys
from functools import cache
from types import TracebackType

import torch
from torch import distributed

from baechi.backend.ranks.wires import Wires
from baechi.backend.real.discover import has_accelerator
from baechi.backend.real.driver import DRIVER
from baechi.errors import RankError
from baechi.torchlib.private.groups import is_together

logger = logging.getLogger(__name__)

_TOLD = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"


def size_here() -> int:
    """How many processes compute together: of torch's default group, else as torchrun says; 1 if alone."""
    if is_together():
        return distributed.get_world_size()
    if not all(name in os.environ for name in _TOLD):
        return 1
    return int(os.environ["WORLD_SIZE"])


def own_device() -> torch.device:
    """The device of this process: an accelerator by its local rank, or the CPU where there is none."""
    if not has_accelerator():
        return torch.device("cpu")
    local, count = int(os.environ.get("LOCAL_RANK", "0")), DRIVER.count()
    if local >= count:
        raise RankError(
            f"this machine has {count} accelerators, and local rank {local} needs one of its own: start "
            f"{count} processes here (--nproc-per-node {count})"
        )
    return torch.device(f"{DRIVER.kind}:{local}")


@cache
def wires() -> Wires:
    """The ways to the other ranks."""
    if not is_together():
        kind = "nccl" if own_device().type == "cuda" else "gloo"
        distributed.init_process_group(kind)
    made = Wires()
    _tell_ends(made)
    made.open(own_device())
    if made.rank:
        logging.getLogger("baechi").setLevel(logging.ERROR)  # rank 0 speaks for all
    logger.warning(
        "one model over %d processes (torchrun); each computes on its own device; give cluster= for a whole "
        "model in each process",
        made.size,
    )
    return made


def _tell_ends(made: Wires) -> None:
    """Let others know if this process's script ends, by an error or not."""
    own, before = os.getpid(), sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == own:  # not in a process that it forked
            made.tell_of(error, trace)
        before(kind, error, trace)

    def end() -> None:
        if os.getpid() == own:
            made.end()

    sys.excepthook = hook
    atexit.register(end)
