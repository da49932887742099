"""Operators whose kernels ask for values only to refuse them, which they do not do for fake tensors.

    one_hot    asks for the smallest label and the largest one: the host waits twice

So that what runs without values takes the same way, they are written here as their kernels are
(`aten/src/ATen/native/Onehot.cpp`); whatever the labels are, they are valid.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baechi.torchlib.fakes.assumptions import valid_labels
from baechi.torchlib.private.modes import dispatch_modes
from baechi.torchlib.private.operators import composite_kernel, operators_replaced

_aten: Any = torch.ops.aten
_CPU = torch.device("cpu")


@contextmanager
def checks_as_kernels_do() -> Iterator[None]:
    """While this is open, tensors without values on the CPU are checked as those with values are.

    Only where a mode of ours watches: torch's compiler traces, and other threads compute, as ever.
    """
    with operators_replaced({"one_hot": _one_hot}):
        yield


def _one_hot(labels: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if not _watched() or num_classes < 1 or not labels.numel():
        plain: torch.Tensor = composite_kernel(_aten.one_hot.default)(labels, num_classes)
        return plain
    with valid_labels():
        for extreme in torch.aminmax(labels):
            extreme.item()
    # called as torch does: only the caller's own calls say on which device, and whether memory is pinned
    made = _aten.zeros.default([*labels.shape, num_classes], dtype=torch.int64, device=_CPU)
    scattered: torch.Tensor = made.scatter_(-1, labels.unsqueeze(-1), 1)
    return scattered


def _watched() -> bool:
    return any(type(mode).__module__.startswith("baechi.") for mode in dispatch_modes())
