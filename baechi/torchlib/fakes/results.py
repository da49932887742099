"""Correct the results of shape functions to what the real kernels return, where the two differ.

workspace     the bytes that a kernel keeps for its backward are in no formula (oneDNN's recurrent layer):
              the kernel runs once for each shape, on zeros; a large one on a part of the batch
layout        the kernel returns other strides; a gradient with wrong strides would cost a copy later
asked for     the kernel makes no gradient that is not asked for
room          the kernel's result has the memory of an argument (`fold`: of all columns)
undefined     the kernel makes no tensor where the shape function returns an empty one
spare         the kernel allocates one element more than the result shows (bags of embeddings)
unreduced     the kernel reduces in the memory of what it reduces, which stays as large (mean losses)
aliases       the shape function returns one tensor twice; the kernel's results never share memory
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from baechi.torchlib.operators.facts import facts_of, flat, flops_of
from baechi.torchlib.operators.rule import Rule, Workspace
from baechi.torchlib.private.fakes import FakeTensor
from baechi.torchlib.private.modes import without_dispatch_modes

_MAX_FLOPS = 2e9
"""A kernel with more floating-point operations runs on a part of the batch only."""

_MARGIN = 1.05
"""Factor: kernels round a workspace up in steps, so a part of the batch may take less than its share."""

_workspace_bytes: dict[Any, int | None] = {}
"""Sizes found so far, by operator and arguments' shapes; None where the kernel makes no workspace."""


def as_its_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Correct the result of a shape function to what the real kernel returns."""
    rule = facts_of(func).rule
    if rule.undefined_without is not None:
        return without_undefined(func, args, result)
    if rule.layout is not None or rule.memory_format is not None:
        result = _with_layout(rule, args, result)
        return result if rule.asked_for is None else _asked_for(args[rule.asked_for], result)
    if rule.room_of is not None and type(result) is FakeTensor:
        room = torch.empty(args[rule.room_of].numel(), dtype=result.dtype, device=result.device)
        return room[: result.numel()].view(result.shape)
    if rule.unreduced and not result.dim() and type(result) is FakeTensor:
        count = math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape))
        return torch.empty(max(1, count), dtype=result.dtype, device=result.device)[0]
    if not isinstance(result, tuple):
        return result
    if rule.spare is not None and result[rule.spare].numel():
        made = result[rule.spare]
        larger = torch.empty(made.numel() + 1, dtype=made.dtype, device=made.device)[:-1]
        result = (*result[: rule.spare], larger, *result[rule.spare + 1 :])
    if rule.workspace is not None:
        result = _with_workspace(func, args, kwargs, result)
    return _with_own_memory(result) if len({id(made) for made in result}) < len(result) else result


def without_undefined(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The results of an operator, with None for those that its kernel does not make."""
    undefined_without = facts_of(func).rule.undefined_without
    if undefined_without is None:
        return result
    found = list(result)
    for number, (position, default) in undefined_without.items():
        if not (args[position] if position < len(args) else default):
            found[number] = None
    return tuple(found)


def _with_layout(rule: Rule, args: tuple[Any, ...], result: Any) -> Any:
    """The result, whose first tensor has the kernel's strides."""
    several = isinstance(result, tuple)
    first = result[0] if several else result
    if type(first) is not FakeTensor:
        return result
    if rule.layout:
        like = functools.reduce(operator.add, [args[position] for position in rule.layout])
        made = torch.empty_like(like, dtype=first.dtype)
    else:
        order = torch.contiguous_format
        if rule.memory_format is not None:
            order = _memory_format_of(args[rule.memory_format])
        made = torch.empty(first.shape, dtype=first.dtype, device=first.device, memory_format=order)
    if not several:
        return made
    return tuple([_like(made, other) if _same_shape(first, other) else other for other in result])


def _same_shape(first: torch.Tensor, other: Any) -> bool:
    return type(other) is FakeTensor and other.shape == first.shape


def _like(made: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(made, dtype=other.dtype)


def _asked_for(flags: Sequence[bool], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results that are asked for; None for each other one."""
    asked = zip(result, flags, strict=False)
    return (*[made if wanted else None for made, wanted in asked], *result[len(flags) :])


def _memory_format_of(tensor: torch.Tensor) -> torch.memory_format:
    """The format that kernels see in a tensor: by the order of its strides, so also in a part of a tensor."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    sizes, strides = tensor.shape, tensor.stride()
    if last is None or not strides[1] or not all(sizes):
        return torch.contiguous_format
    least = 0
    for dim in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if strides[dim] < least or (dim == 0 and least == strides[1]):  # a row of numbers has no channels
            return torch.contiguous_format
        least = strides[dim] * max(1, sizes[dim])
    return last


def with_kept_strides(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The result with all strides of the tensor that it was made of, where its kernel keeps them.

    Strides of dimensions of one element matter: pooling asks for them.
    """
    given = [tensor for tensor in flat(args) if tensor.dim()]
    if not facts_of(func).rule.keeps_strides or len(given) != 1 or given[0].shape != result.shape:
        return result
    stride = given[0].stride()
    sizes = zip(result.shape, result.stride(), stride, strict=True)
    if any(size > 1 and one != other for size, one, other in sizes):
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)


def _with_own_memory(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results, with a new tensor for each one that is returned a second time."""
    seen: list[Any] = []
    for made in result:
        again = type(made) is FakeTensor and any(made is other for other in seen)
        seen.append(
            torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device=made.device)
            if again
            else made
        )
    return tuple(seen)


def _with_workspace(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The result of an operator, its workspace as large as the kernel makes it."""
    workspace = facts_of(func).rule.workspace
    if workspace is None or type(result[workspace.result]) is not FakeTensor:
        return result
    plain = tuple([value for value in args if not isinstance(value, torch.Tensor)])
    key = (func, tuple([(t.shape, t.stride(), t.dtype) for t in flat(args)]), repr(plain))
    if key not in _workspace_bytes:
        _workspace_bytes[key] = _kernel_bytes(func, workspace, args, kwargs)
    place, size_bytes = workspace.result, _workspace_bytes[key]
    made = (
        None
        if size_bytes is None
        else torch.empty(size_bytes, dtype=torch.uint8, device=result[place].device)
    )
    return (*result[:place], made, *result[place + 1 :])


def _kernel_bytes(
    func: Any, workspace: Workspace, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> int | None:
    """How large the workspace is, by running the kernel on zeros; None if it makes none, as in inference."""
    batch = args[workspace.batched[0]].shape[-2]
    flops = flops_of(func, args, kwargs, None)
    part = batch if flops <= _MAX_FLOPS else max(1, int(batch * _MAX_FLOPS / flops))
    with without_dispatch_modes():
        sizes = [part if place in workspace.batched else None for place in range(len(args))]
        real = [_zeros(value, size) for value, size in zip(args, sizes, strict=True)]
        made = func(*real, **kwargs)[workspace.result]
    if made is None:
        return None
    found = int(made.nbytes)
    return found if part == batch else math.ceil(found * batch / part * _MARGIN)


def _zeros(value: Any, batch: int | None) -> Any:
    """Zeros of a tensor's shape, but with this batch size (the last dimension but one) unless None."""
    if not isinstance(value, torch.Tensor):
        return value
    shape = list(value.shape)
    if batch is not None:
        shape[-2] = batch
    return torch.zeros(shape, dtype=value.dtype)
