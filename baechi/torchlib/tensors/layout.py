"""Copying a tensor with its layout, since kernels may round differently on another one."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from baechi.torchlib.private.modes import without_torch_function
from baechi.torchlib.private.tensors import TensorBase
from baechi.torchlib.private.transforms import is_wrapped

_ALIGNMENT_BYTES = 64

real_device: Callable[[torch.Tensor], torch.device] = TensorBase.device.__get__
"""The device where torch itself keeps a tensor, not the emulated device."""


def copy_with_layout(tensor: torch.Tensor, device: torch.device, *, filled: bool = True) -> torch.Tensor:
    """Copy a tensor to a device; strides and alignment stay what they were.

    A transposed, sliced or expanded tensor that arrived contiguous could take another path
    through a kernel and differ in the last bit from the single-device run. So the copy has the
    same strides, and its first element is aligned as the original's is.
    """
    with without_torch_function():  # hidden from function modes, the runtime's too
        wrapped = is_wrapped(tensor)  # inside vmap, grad, ...
        if wrapped or tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            with torch.no_grad():
                return _plain_copy(tensor, device)
        turned = tensor.is_conj() or tensor.is_neg()
        shifted = tensor.storage_offset() * tensor.element_size() % _ALIGNMENT_BYTES
        if filled and not turned and not shifted and tensor.is_contiguous():  # most are
            source = tensor.detach()
            if real_device(source) == device:
                return source.clone()
            return torch.empty_like(source, device=device).copy_(source, non_blocking=True)
        with torch.no_grad():
            return _strided_copy(tensor.resolve_conj().resolve_neg() if turned else tensor, device, filled)


def sent_and_held_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes that `copy_with_layout` moves, and the bytes of memory that the copy takes."""
    size = tensor.element_size()
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return (tensor.numel() * size,) * 2
    if tensor.is_contiguous() and not tensor.storage_offset() * size % _ALIGNMENT_BYTES:
        return (tensor.numel() * size,) * 2
    shape = [1 if stride == 0 else n for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    room = _room(tensor, shape)
    if room is None:
        return (tensor.numel() * size,) * 2
    return prod(shape) * size if tensor.numel() else 0, sum(room) * size


def strides_without_gaps(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Strides, where these leave no gaps in memory; else those of rows."""
    expected, rows = 1, list[int]()
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size != 1 and step != expected:
            break
        expected *= size
    else:
        return tuple(stride)
    step = 1
    for size in reversed(shape):
        rows.insert(0, step)
        step *= size
    return tuple(rows)


def may_show_twice(tensor: torch.Tensor) -> bool:
    """Whether two indices may name one element in memory, as in what `unfold` or `expand` returns."""
    return _room(tensor, tensor.shape) is None


def copy_from_row(tensor: torch.Tensor, *, filled: bool = True) -> torch.Tensor:
    """Copy a tensor on the host as another process receives it: with its strides, out of a row."""
    if tensor.layout != torch.strided:
        return _plain_copy(tensor, torch.device("cpu"))
    made = memory_for_row(tensor.shape, tensor.stride(), tensor.dtype, torch.device("cpu"))
    if filled:
        lay(tensor.detach(), made)
    return made


def memory_for_row(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Memory for a value with these strides, and for all of its elements in a row."""
    size = max(prod(shape), span_of(shape, stride))
    return over(torch.empty(size, dtype=dtype, device=device), shape, stride)


def span_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements lie from the first to the last one."""
    return 1 + sum([(n - 1) * step for n, step in zip(shape, stride, strict=True)]) if prod(shape) else 0


def lay(source: torch.Tensor, whole: torch.Tensor) -> None:
    """Write a value into memory that may have gaps, or show elements twice."""
    for dim, stride in enumerate(whole.stride()):
        if stride == 0 and whole.shape[dim] > 1:
            source, whole = source.narrow(dim, 0, 1), whole.narrow(dim, 0, 1)
    whole.copy_(source)


def _strided_copy(tensor: torch.Tensor, device: torch.device, filled: bool) -> torch.Tensor:
    """A copy of a tensor with strides; of an expanded one, each element moves once."""
    source = tensor.detach()
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            source = source.narrow(dim, 0, 1)
    room = _room(source, source.shape)
    if room is None:
        return _plain_copy(tensor, device)
    shift, span = room
    memory = torch.empty(shift + span, dtype=tensor.dtype, device=device)
    if filled:
        over(memory, source.shape, source.stride(), shift).copy_(source, non_blocking=True)
    return over(memory, tensor.shape, tensor.stride(), shift)


def _plain_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    copied: torch.Tensor = TensorBase.to(tensor.detach(), device, copy=True)
    return copied


def _room(tensor: torch.Tensor, shape: Sequence[int]) -> tuple[int, int] | None:
    """Elements before the first one, for its alignment, and from that to the last one of so many.

    None if two indices may name one element (`unfold` makes such views).
    """
    span = 1
    for stride, size in sorted(zip(tensor.stride(), shape, strict=True)):
        if size > 1 and stride < span:
            return None
        span += (size - 1) * stride if size else 0
    shift_bytes = (tensor.storage_offset() * tensor.element_size()) % _ALIGNMENT_BYTES
    return shift_bytes // tensor.element_size(), span if all(shape) else 0


def over(memory: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    """A tensor over the same memory that is no view: autograd refuses to write views made without it."""
    tensor = torch.empty(0, dtype=memory.dtype, device=real_device(memory))
    return tensor.set_(memory.untyped_storage(), offset, shape, strides)


def contiguous_strides(shape: Sequence[Any]) -> list[int]:
    """The strides of a tensor that lies row by row."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(1, size)
    return strides
