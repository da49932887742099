"""What a tensor looks like, without what is in it."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Meta:
    """What a tensor looks like.

    Args:
        size, stride, dtype, device, requires_grad: as the tensor has them.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Meta":
        """What a tensor looks like."""
        device = torch._C.TensorBase.device.__get__(tensor)
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, device, tensor.requires_grad)
