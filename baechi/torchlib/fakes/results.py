"""Results of shape functions as the real kernels make them, where the two differ.

workspace     how much a kernel keeps for its backward is in no formula (oneDNN's recurrent layer):
              it runs once for each shape, on zeros; a large one with a part of the batch
layout        a gradient with other strides costs a copy later
spare         some kernels make one element more than they show (bags of embeddings)
memory        a kernel's results share none; some shape functions return one tensor in two places
"""

import functools
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


def as_its_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """The result of an operator under fake tensors, as its real kernel makes it.

    Args:
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        result: what it returned; a fake mode must be on.
    """
    rule = facts_of(func).rule
    if rule.layout is not None:
        return _laid_out(rule.layout, args, result)
    if not isinstance(result, tuple):
        return result
    if rule.spare is not None and result[rule.spare].numel():
        made = result[rule.spare]
        larger = torch.empty(made.numel() + 1, dtype=made.dtype)[:-1]
        result = (*result[: rule.spare], larger, *result[rule.spare + 1 :])
    if rule.workspace is not None:
        result = _with_workspace(func, args, kwargs, result)
    return _apart(result) if len({id(made) for made in result}) < len(result) else result


def _laid_out(layout: tuple[int, ...], args: tuple[Any, ...], result: Any) -> Any:
    """The result, whose first tensor lies like a sum of some arguments, or is contiguous if of none."""
    several = isinstance(result, tuple)
    first = result[0] if several else result
    if type(first) is not FakeTensor:
        return result
    if layout:
        like = functools.reduce(torch.add, [args[position] for position in layout])
        made = torch.empty_like(like, dtype=first.dtype)
    else:
        made = torch.empty(first.shape, dtype=first.dtype)
    return (made, *result[1:]) if several else made


def with_kept_strides(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The result with all strides of the tensor that it was made of, where its kernel keeps them.

    Strides of dimensions of one element matter: pooling asks for them.

    Args:
        func: the operator.
        args: its positional arguments.
        result: what it returned.
    """
    given = [tensor for tensor in flat(args) if tensor.dim()]
    if not facts_of(func).rule.keeps_strides or len(given) != 1 or given[0].shape != result.shape:
        return result
    stride = given[0].stride()
    sizes = zip(result.shape, result.stride(), stride, strict=True)
    if any(size > 1 and one != other for size, one, other in sizes):
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype)


def _apart(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results with memory of their own each."""
    seen: list[Any] = []
    for made in result:
        again = type(made) is FakeTensor and any(made is other for other in seen)
        seen.append(torch.empty_strided(made.shape, made.stride(), dtype=made.dtype) if again else made)
    return tuple(seen)


def _with_workspace(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The result of an operator, its workspace as large as the kernel makes it.

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
