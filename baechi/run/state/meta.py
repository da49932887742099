"""What a tensor looks like, without what is in it."""

from dataclasses import dataclass

import torch

from baechi.torchlib.tensors.layout import real_device


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
    def of(cls, tensor: torch.Tensor, device: torch.device | None = None) -> "Meta":
        """What a tensor looks like.

        Args:
            tensor: any tensor.
            device: where it will lie; None: where it lies.
        """
        there = real_device(tensor) if device is None else device
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, there, tensor.requires_grad)
