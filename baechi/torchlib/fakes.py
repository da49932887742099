"""What goes wrong in torch while something runs with fake tensors."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_FakeTensor: Any = FakeTensor


@contextmanager
def fakes_at_work() -> Iterator[None]:
    """While fake tensors run: no complaints in torch's log, and deep copies that read no memory.

    An operator that refuses fake tensors is logged as an error; here it is expected. And a deep copy
    copies a tensor's memory, of which a fake one has none.
    """
    _FakeTensor.__deepcopy__ = _deep_copy  # stays: without it the process dies, sooner or later
    torch_log = logging.getLogger("torch._subclasses.fake_tensor")
    before = torch_log.disabled
    torch_log.disabled = True
    try:
        yield
    finally:
        torch_log.disabled = before


def _deep_copy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) not in memo:
        made = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = torch.nn.Parameter(made) if isinstance(tensor, torch.nn.Parameter) else made
    copied: torch.Tensor = memo[id(tensor)]
    return copied
