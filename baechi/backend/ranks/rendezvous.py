"""Where the ranks of a job meet: once in each process."""

import logging
import os
from functools import cache

import torch
from torch import distributed

from baechi.backend.ranks.wires import Wires
from baechi.backend.real.discover import has_accelerator
from baechi.backend.real.driver import DRIVER
from baechi.errors import RankError
from baechi.torchlib.private.groups import is_together

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


@cache
def wires() -> Wires:
    """The ways to the other ranks."""
    if not is_together():
        kind = "nccl" if own_device().type == "cuda" else "gloo"
        distributed.init_process_group(kind)
    made = Wires()
    made.open(own_device())
    if made.rank:
        logging.getLogger("baechi").setLevel(logging.ERROR)  # rank 0 speaks for all
    logger.warning(
        "one model over %d processes (torchrun); each computes on its own device; give cluster= for a whole "
        "model in each process",
        made.size,
    )
    return made
