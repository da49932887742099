"""A tensor's metadata, without its values."""

from typing import NamedTuple

import torch

from baechi.torchlib.tensors.layout import real_device


class Meta(NamedTuple):
    """A tensor's metadata.

    Args:
        size, stride, dtype, device, requires_grad: as of the tensor.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor, device: torch.device | None = None) -> "Meta":
        """Read a tensor's metadata.

        Args:
            tensor: any tensor.
            device: where it will lie; None: where it lies now.
        """
        there = real_device(tensor) if device is None else device
        look = (tuple(tensor.shape), tensor.stride(), tensor.dtype, there, tensor.requires_grad)
        return tuple.__new__(cls, look)  # what `cls(*look)` does, without a function in between
