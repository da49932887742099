"""How many processes compute together, as torch or torchrun says."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed

from baechi.torchlib.private.groups import is_together

_TOLD = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"


_alone: list[None] = []


@contextmanager
def alone() -> Iterator[None]:
    """Within this context this process computes alone, as in a dry run."""
    _alone.append(None)
    try:
        yield
    finally:
        _alone.pop()


def size_here() -> int:
    """How many processes compute together: of torch's default group, else as torchrun says; 1 if alone."""
    if _alone:
        return 1
    if is_together():
        return distributed.get_world_size()
    if not all(name in os.environ for name in _TOLD):
        return 1
    return int(os.environ["WORLD_SIZE"])
