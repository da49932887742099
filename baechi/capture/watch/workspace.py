"""Memory that a kernel keeps for its backward, and that only the kernel itself knows.

Fake tensors stand for what an operator's formula says; the workspace of oneDNN's recurrent layer is
in no formula. So the kernel runs once for each shape, on zeros; large ones with a part of the batch.
"""

from math import ceil
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from baechi.torchlib.operators import flat

_RECURRENT = torch.ops.aten.mkldnn_rnn_layer.default
_MOST_FLOPS = 2e9
"""A larger kernel runs with a part of the batch."""

_BATCHED = (0, 5, 6)
"""Which arguments have a batch: the input and both states; the others are weights."""

_MARGIN = 1.05
"""It rounds up in steps, so that a part of the batch may need less than its share."""

_known: dict[Any, int] = {}


def with_workspace(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """The result of an operator under fake tensors, its workspace as large as the kernel makes it.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    if func is not _RECURRENT or type(result[3]) is not FakeTensor:
        return result
    plain = tuple([value for value in args if not isinstance(value, torch.Tensor)])
    key = (tuple([(t.shape, t.stride(), t.dtype) for t in flat(args)]), repr(plain))
    if key not in _known:
        _known[key] = _kernel_bytes(args, kwargs)
    workspace = torch.empty(_known[key], dtype=torch.uint8)
    return (*result[:3], workspace)


def _kernel_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    steps, batch, features = args[0].shape
    weight = args[1]
    flops = 2 * steps * batch * weight.shape[0] * (features + weight.shape[0] // 4)
    part = batch if flops <= _MOST_FLOPS else max(1, int(batch * _MOST_FLOPS / flops))
    with _disable_current_modes():
        real = [
            _zeros(value, part if place in _BATCHED else None) if isinstance(value, torch.Tensor) else value
            for place, value in enumerate(args)
        ]
        found = int(_RECURRENT(*real, **kwargs)[3].nbytes)
    return found if part == batch else ceil(found * batch / part * _MARGIN)


def _zeros(like: torch.Tensor, batch: int | None) -> torch.Tensor:
    """Zeros of the same shape, but for the batch: it is the last dimension but one."""
    shape = list(like.shape)
    if batch is not None:
        shape[-2] = batch
    return torch.zeros(shape, dtype=like.dtype)
