"""Who else has a tensor: autograd, views, variables."""

import sys

import torch

from baechi.torchlib.private.tensors import storage_address, storage_use_count, use_count

_HELD_BY_US = 3
"""References inside `is_last_reference`: the caller's, the parameter, and `getrefcount`'s argument."""

_OF_ONE_TENSOR = 2
"""References to a storage that only one tensor has: the tensor's, and that of the storage's own object."""


def is_last_reference(tensor: torch.Tensor) -> bool:
    """Whether a tensor and its memory are gone when the caller drops its one reference.

    Args:
        tensor: a strided tensor.
    """
    if sys.getrefcount(tensor) > _HELD_BY_US or use_count(tensor) > 1:
        return False
    return storage_use_count(storage_address(tensor.untyped_storage())) <= _OF_ONE_TENSOR
