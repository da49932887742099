"""Copying a tensor with its layout, since kernels may round differently on another one."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from baechi.torchlib.private.modes import without_torch_function
from baechi.torchlib.private.tensors import TensorBase
from baechi.torchlib.private.transforms import is_wrapped

_ALIGNMENT_BYTES = 64


def copy_with_layout(tensor: torch.Tensor, device: torch.device, *, filled: bool = True) -> torch.Tensor:
    """Copy a tensor to a device; strides and alignment stay what they were.

    A transposed, sliced or expanded tensor that arrived contiguous could take another path
    through a kernel and differ in the last bit from the single-device run. So the copy has the
    same strides, and its first element is aligned as the original's is.

    Args:
        tensor: any tensor; what has no strides (sparse, nested, quantized, wrapped) is copied by `to`.
        device: where the copy lies.
        filled: whether values are copied; else there is only memory for them.

    Returns:
        A new storage, never an alias, outside autograd.
    """
    if filled and not is_wrapped(tensor):
        with without_torch_function():
            copied = _straight_copy(tensor, device)
        if copied is not None:
            return copied
    with torch.no_grad(), without_torch_function():  # hidden from function modes, the runtime's too
        wrapped = is_wrapped(tensor)  # inside vmap, grad, ...
        if wrapped or tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            return _plain_copy(tensor, device)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        source = _without_repeats(tensor.detach())
        if _overlaps(source.shape, source.stride()):
            return _plain_copy(tensor, device)
        target = _empty_like(source, device)
        if filled:
            target.copy_(source, non_blocking=True)
        return over(target, tensor.shape, tensor.stride(), int(target.storage_offset()))


def sent_and_held_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes that `copy_with_layout` moves, and the bytes of memory that the copy takes.

    Args:
        tensor: any tensor.

    Returns:
        Of an expanded tensor each element moves once. A slice takes the memory between its elements, too.
    """
    size = tensor.element_size()
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return (tensor.numel() * size,) * 2
    if tensor.is_contiguous() and not tensor.storage_offset() * size % _ALIGNMENT_BYTES:
        return (tensor.numel() * size,) * 2
    shape = [1 if stride == 0 else n for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    if _overlaps(shape, tensor.stride()):
        return (tensor.numel() * size,) * 2
    sent = prod(shape) * size if tensor.numel() else 0
    shift, span = _room(tensor, shape)
    return sent, (shift + span) * size


def _straight_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    """A copy of a tensor that is contiguous and aligned, which most are; None for others."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    shifted = tensor.storage_offset() and tensor.storage_offset() * tensor.element_size() % _ALIGNMENT_BYTES
    if shifted or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    source = tensor.detach()
    if real_device(source) == device:
        return source.clone()
    return torch.empty_like(source, device=device).copy_(source, non_blocking=True)  # of the same strides


def _plain_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    copied: torch.Tensor = TensorBase.to(tensor.detach(), device, copy=True)
    return copied


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """An expanded tensor, each element once: dimensions of stride 0 shrunk to size 1."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices of such a tensor may name one element (`unfold` makes such views)."""
    reach = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride < reach:
            return True
        reach += (size - 1) * stride if size else 0
    return False


def _room(tensor: torch.Tensor, shape: Sequence[int]) -> tuple[int, int]:
    """Elements before the first one, for its alignment, and from that to the last one of so many."""
    shift_bytes = (tensor.storage_offset() * tensor.element_size()) % _ALIGNMENT_BYTES
    span = 0
    if all(shape):
        span = 1 + sum((n - 1) * stride for n, stride in zip(shape, tensor.stride(), strict=True))
    return shift_bytes // tensor.element_size(), span


def _empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    shift, span = _room(tensor, tensor.shape)
    flat = torch.empty(shift + span, dtype=tensor.dtype, device=device)
    return over(flat, tensor.shape, tensor.stride(), shift)


def over(memory: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    """A tensor over the same memory that is no view: autograd refuses to write views made without it.

    Args:
        memory: a tensor.
        shape, strides, offset: of the new one.
    """
    tensor = torch.empty(0, dtype=memory.dtype, device=real_device(memory))
    return tensor.set_(memory.untyped_storage(), offset, shape, strides)


def real_device(tensor: torch.Tensor) -> torch.device:
    """The device where torch itself keeps a tensor, not the emulated device.

    Args:
        tensor: any tensor.
    """
    device: torch.device = TensorBase.device.__get__(tensor)
    return device


def contiguous_strides(shape: Sequence[Any]) -> list[int]:
    """The strides of a tensor that lies row by row.

    Args:
        shape: of the tensor.
    """
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(1, size)
    return strides
