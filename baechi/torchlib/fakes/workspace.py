"""Memory that a kernel keeps for its backward, and that only the kernel itself knows.

Fake tensors have the sizes that an operator's formula says; the workspace of oneDNN's recurrent layer
is in no formula. So the kernel runs once for each shape, on zeros; large ones with a part of the batch.
"""

from math import ceil
from typing import Any

import torch

from baechi.torchlib.operators.facts import facts_of, flat, flops_of
from baechi.torchlib.operators.rule import Workspace
from baechi.torchlib.private.fakes import FakeTensor
from baechi.torchlib.private.modes import without_dispatch_modes

_MOST_FLOPS = 2e9
"""A larger kernel runs with a part of the batch."""

_MARGIN = 1.05
"""It rounds up in steps, so that a part of the batch may need less than its share."""

_known: dict[Any, int | None] = {}


def with_workspace(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """The result of an operator under fake tensors, its workspace as large as the kernel makes it.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    workspace = facts_of(func).rule.workspace
    if workspace is None or type(result[workspace.result]) is not FakeTensor:
        return result
    plain = tuple([value for value in args if not isinstance(value, torch.Tensor)])
    key = (func, tuple([(t.shape, t.stride(), t.dtype) for t in flat(args)]), repr(plain))
    if key not in _known:
        _known[key] = _kernel_bytes(func, workspace, args, kwargs)
    place, size_bytes = workspace.result, _known[key]
    made = None if size_bytes is None else torch.empty(size_bytes, dtype=torch.uint8)
    return (*result[:place], made, *result[place + 1 :])


def _kernel_bytes(
    func: Any, workspace: Workspace, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int | None:
    """How large the workspace is; None if the kernel makes none, as in inference."""
    batch = args[workspace.batched[0]].shape[-2]
    flops = flops_of(func, args, kwargs, None)
    part = batch if flops <= _MOST_FLOPS else max(1, int(batch * _MOST_FLOPS / flops))
    with without_dispatch_modes():
        sizes = [part if place in workspace.batched else None for place in range(len(args))]
        real = [_zeros(value, size) for value, size in zip(args, sizes, strict=True)]
        made = func(*real, **kwargs)[workspace.result]
    if made is None:
        return None
    found = int(made.nbytes)
    return found if part == batch else ceil(found * batch / part * _MARGIN)


def _zeros(value: Any, batch: int | None) -> Any:
    """Zeros of a tensor's shape, but for the batch: it is the last dimension but one."""
    if not isinstance(value, torch.Tensor):
        return value
    shape = list(value.shape)
    if batch is not None:
        shape[-2] = batch
    return torch.zeros(shape, dtype=value.dtype)
