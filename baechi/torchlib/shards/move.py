"""`to`, `cpu` and `.data = ...` of a sharded tensor."""

from typing import Any

import torch

from baechi.torchlib.private.tensors import swap_implementation
from baechi.torchlib.shards.gradients import joined, shards_of
from baechi.torchlib.shards.weight import ShardedWeight, refuse


def moved(tensor: ShardedWeight, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What `tensor.to(...)` returns."""
    device, dtype = _target(args, kwargs)
    host = device is not None and device.type == "cpu" and device.index is None
    first = tensor.shards[0].device
    stays = device is None or (device == first and not host)
    recorded = tensor.requires_grad and torch.is_grad_enabled()
    if stays:
        if dtype is None or dtype == tensor.dtype:
            return tensor.clone() if kwargs.get("copy") else tensor
        cast = [shard.to(dtype) for shard in shards_of(tensor)]
        return joined(cast, tensor.axis) if recorded else tensor.like(cast)
    if not host:
        refuse(f"moving to {device}", tensor)
    whole = torch.cat([shard.cpu() for shard in shards_of(tensor)], tensor.axis)
    return whole if dtype is None else whole.to(dtype)


def _target(args: Any, kwargs: Any) -> tuple[torch.device | None, torch.dtype | None]:
    """The device and the dtype among the arguments of `to`."""
    given = [*args, kwargs.get("device"), kwargs.get("dtype"), kwargs.get("other")]
    device: torch.device | None = None
    dtype: torch.dtype | None = None
    for value in given:
        if isinstance(value, torch.Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, torch.device)) or (
            isinstance(value, int) and not isinstance(value, bool)
        ):
            device = torch.device(value)
    return device, dtype


def set_data(tensor: ShardedWeight, value: torch.Tensor) -> None:
    """What `tensor.data = value` does."""
    if isinstance(value, ShardedWeight):
        if value.dtype != tensor.dtype or value.shape != tensor.shape:
            other = ShardedWeight(value.shards, value.axis).requires_grad_(tensor.requires_grad)
            grad = tensor.grad  # it belongs to what is exchanged
            swap_implementation(tensor, other)
            if grad is not None and value.shape == grad.shape:
                grad.data = grad.detach().to(value.dtype)
                tensor.grad = grad
        tensor.shards, tensor.axis, tensor.lies = list(value.shards), value.axis, value.lies
        return
    if value.shape != tensor.shape:
        refuse(f"setting .data to a tensor of shape {tuple(value.shape)} of", tensor)
    with torch.no_grad():
        cut = tensor.beside(value.detach().to(tensor.dtype))
        tensor.shards = [shard.clone(memory_format=torch.contiguous_format) for shard in cut]
