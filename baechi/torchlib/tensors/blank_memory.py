"""Memory for weights that are on `meta`, which have a shape and nothing in it."""

from collections.abc import Iterable

import torch

from baechi.torchlib.tensors.spans import spans_of


def blank_tensors(tensors: Iterable[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Tensors like others, over new memory in which nothing was written yet.

    Args:
        tensors: weights; what shares storage among them (ties, views) shares the new one, too, which has room
            for what they span of it.
        device: where the memory lies.

    Returns:
        For each, a tensor with the same size, strides and dtype that needs no gradient.
    """
    tensors = list(tensors)
    spans = spans_of(tensors)
    memory = {
        storage: torch.empty(span.size_bytes, dtype=torch.uint8, device=device).untyped_storage()
        for storage, span in spans.items()
    }
    storages = [tensor.untyped_storage() for tensor in tensors]
    return [
        spans[storage].over(memory[storage], tensor)
        for storage, tensor in zip(storages, tensors, strict=True)
    ]
