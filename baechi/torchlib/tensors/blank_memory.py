"""Memory for weights that are on `meta`, which have a shape and nothing in it."""

from collections.abc import Iterable

import torch


def blank_tensors(tensors: Iterable[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Tensors like others, over new memory in which nothing was written yet.

    Args:
        tensors: weights; what shares storage among them (ties, views) shares the new one, too.
        device: where the memory lies.

    Returns:
        For each, a tensor with the same size, strides and dtype that needs no gradient.
    """
    storages: dict[torch.UntypedStorage, torch.UntypedStorage] = {}
    made = []
    for tensor in tensors:
        old = tensor.untyped_storage()
        if old not in storages:
            memory = torch.empty(old.nbytes(), dtype=torch.uint8, device=device)
            storages[old] = memory.untyped_storage()
        like = torch.empty(0, dtype=tensor.dtype, device=device)
        made.append(like.set_(storages[old], tensor.storage_offset(), tensor.shape, tensor.stride()))
    return made
