"""What goes wrong in torch while something runs with fake tensors."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baechi.torchlib.private.fakes import FAKE_CACHE, FAKE_LOG, FakeTensorMode
from baechi.torchlib.private.patches import FAKE_DEEPCOPY, FAKE_REDUCE

_here = threading.local()
"""`depth`: in how many contexts of `fakes_at_work` this thread is."""

_REMEMBERED = 16_384
"""Operators, each with the shapes of its inputs; torch itself never forgets one."""


@contextmanager
def fakes_at_work() -> Iterator[None]:
    """While fake tensors run: no complaints in torch's log, copies that read no memory, a small cache.

    An operator that refuses fake tensors is logged as an error; here it is expected. And `copy.copy` and
    `copy.deepcopy` read a tensor's memory, of which a fake one has none.
    """
    FAKE_DEEPCOPY.put(_deep_copy)  # both stay: without them the process dies, sooner or later
    FAKE_REDUCE.put(_reduced)
    before, depth = FAKE_LOG.disabled, getattr(_here, "depth", 0)
    FAKE_LOG.disabled, _here.depth = True, depth + 1
    try:
        yield
    finally:
        FAKE_LOG.disabled, _here.depth = before, depth
        if len(FAKE_CACHE) > _REMEMBERED:
            FakeTensorMode.cache_clear()


def _deep_copy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) not in memo:
        made = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = torch.nn.Parameter(made) if isinstance(tensor, torch.nn.Parameter) else made
    copied: torch.Tensor = memo[id(tensor)]
    return copied


class _Copied:
    """What `copy.copy` passes on from a fake tensor; pickle, which would write it, gets a clear error."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        raise TypeError("a fake tensor has no values, so it cannot be pickled")


def _reduced(tensor: torch.Tensor, protocol: Any) -> Any:
    if not getattr(_here, "depth", 0):
        return FAKE_REDUCE.original(tensor, protocol)
    return _shallow_copy, (_Copied(tensor),)


def _shallow_copy(copied: _Copied) -> torch.Tensor:
    """As torch's: another tensor on the same memory, without the history."""
    tensor = copied.tensor
    made = tensor.detach().requires_grad_(tensor.requires_grad)
    return torch.nn.Parameter(made) if isinstance(tensor, torch.nn.Parameter) else made
