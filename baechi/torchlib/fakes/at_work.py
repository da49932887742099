"""What goes wrong in torch while something runs with fake tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baechi.torchlib.private.fakes import FAKE_CACHE, FAKE_LOG, FakeTensorMode
from baechi.torchlib.private.patches import FAKE_DEEPCOPY

_REMEMBERED = 16_384
"""Operators, each with the shapes of its inputs; torch itself never forgets one."""


@contextmanager
def fakes_at_work() -> Iterator[None]:
    """While fake tensors run: no complaints in torch's log, deep copies that read no memory, a small cache.

    An operator that refuses fake tensors is logged as an error; here it is expected. And a deep copy
    copies a tensor's memory, of which a fake one has none.
    """
    FAKE_DEEPCOPY.put(_deep_copy)  # stays: without it the process dies, sooner or later
    before = FAKE_LOG.disabled
    FAKE_LOG.disabled = True
    try:
        yield
    finally:
        FAKE_LOG.disabled = before
        if len(FAKE_CACHE) > _REMEMBERED:
            FakeTensorMode.cache_clear()


def _deep_copy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) not in memo:
        made = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = torch.nn.Parameter(made) if isinstance(tensor, torch.nn.Parameter) else made
    copied: torch.Tensor = memo[id(tensor)]
    return copied
