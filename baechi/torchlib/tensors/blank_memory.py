"""Memory for weights that are on `meta`, which have a shape and nothing in it."""

from collections.abc import Iterable

import torch

from baechi.torchlib.tensors.spans import spans_of


def blank_tensors(tensors: Iterable[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Tensors like others, over new memory in which nothing was written yet."""
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
