"""What of a storage its tensors span: a view of twelve rows of a thousand needs memory for twelve.

Tensors that share a storage span one part of it together, so that they go on sharing memory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from baechi.torchlib.tensors.storage import storage_bytes, storage_object

_ALIGNED = 16
"""Spans begin at multiples of the largest element's bytes, so that offsets are whole numbers of any dtype."""


class Span(NamedTuple):
    """A part of a storage.

    Args:
        start_bytes: where it begins.
        size_bytes: how long it is.
    """

    start_bytes: int
    size_bytes: int

    def memory_of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The part as a view of bytes."""
        view = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return view.set_(storage, self.start_bytes, (self.size_bytes,), (1,))

    def over(self, memory: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like one of the storage, over memory for the part alone."""
        like = torch.empty(0, dtype=tensor.dtype, device=memory.device)
        offset = tensor.storage_offset() - self.start_bytes // tensor.itemsize
        return like.set_(memory, offset if tensor.numel() else 0, tensor.shape, tensor.stride())


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor is elements of one storage, and nothing more."""
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)


def spans_of(tensors: Iterable[torch.Tensor]) -> dict[torch.UntypedStorage, Span]:
    """By storage, what its tensors span together."""
    found: dict[torch.UntypedStorage, Span] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if not tensor.numel():
            found.setdefault(storage, Span(0, 0))
            continue
        start = tensor.storage_offset() * tensor.itemsize
        last = sum([(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)])
        stop, start = int(start + (last + 1) * tensor.itemsize), int(start - start % _ALIGNED)
        before = found.get(storage, Span(0, 0))
        if before.size_bytes:
            start, stop = min(start, before.start_bytes), max(stop, sum(before))
        found[storage] = Span(start, stop - start)
    return found


def held_bytes(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """What a model's weights need where they are moved, by the `id` of what stands for their memory."""
    tensors = list(tensors)
    dense = [tensor for tensor in tensors if is_dense(tensor)]
    sizes = {id(storage_object(tensor)): storage_bytes(tensor) for tensor in tensors}
    return sizes | {id(storage): span.size_bytes for storage, span in spans_of(dense).items()}


def copied_to_host(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of dense tensors on the host; those that share memory share that of the copies."""
    tensors = list(tensors)
    spans = spans_of(tensors)
    memory = {
        storage: span.memory_of(storage).to("cpu", copy=True).untyped_storage()
        for storage, span in spans.items()
    }
    storages = [tensor.untyped_storage() for tensor in tensors]
    return [
        spans[storage].over(memory[storage], tensor)
        for storage, tensor in zip(storages, tensors, strict=True)
    ]


def packed(
    tensors: Sequence[torch.Tensor], device: torch.device, stays: Callable[[torch.Tensor], bool]
) -> list[torch.Tensor]:
    """Tensors with the same values on a device, over memory for what they span of their storages."""
    moving = {id(tensor) for tensor in tensors if not stays(tensor)}
    dense = [tensor for tensor in tensors if id(tensor) in moving and is_dense(tensor)]
    spans, memory = spans_of(dense), {}
    for storage, span in spans.items():
        if storage.device != device or span.size_bytes < storage.nbytes():
            memory[storage] = span.memory_of(storage).to(device, copy=True).untyped_storage()
    return [
        _moved(tensor, device, spans, memory) if id(tensor) in moving else tensor.data for tensor in tensors
    ]


def _moved(
    tensor: torch.Tensor,
    device: torch.device,
    spans: Mapping[torch.UntypedStorage, Span],
    memory: Mapping[torch.UntypedStorage, torch.UntypedStorage],
) -> torch.Tensor:
    if not is_dense(tensor):
        return tensor.data.to(device)
    storage = tensor.untyped_storage()
    return spans[storage].over(memory[storage], tensor) if storage in memory else tensor.data
