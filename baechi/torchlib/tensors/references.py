"""Who else has a tensor: autograd, views, variables."""

import sys

import torch

from baechi.torchlib.private.tensors import storage_address, storage_use_count, use_count, view_base

_HELD_BY_US = 3
"""References inside `is_last_reference`: the caller's, the parameter, and `getrefcount`'s argument."""

_OF_ONE_TENSOR = 2
"""References to a storage that only one tensor has: the tensor's, and that of the storage's own object."""

_OF_ONE_VIEW = 3, 2
"""References to a base that only one view has, ours among them: of its Python object, and of torch."""


def is_last_reference(tensor: torch.Tensor) -> bool:
    """Whether a tensor and its memory are gone when the caller drops its one reference.

    Many kernels return a view of what they made; a base that has no other view goes with it.

    Args:
        tensor: a strided tensor.
    """
    if sys.getrefcount(tensor) > _HELD_BY_US or use_count(tensor) > 1:
        return False
    base, alone = view_base(tensor), _OF_ONE_TENSOR
    if base is not None:
        if sys.getrefcount(base) > _OF_ONE_VIEW[0] or use_count(base) > _OF_ONE_VIEW[1]:
            return False
        alone += 1
    return storage_use_count(storage_address(tensor.untyped_storage())) <= alone


def has_memory_alone(tensor: torch.Tensor) -> bool:
    """Whether no other tensor shows the memory of one, but for what it is itself a view of.

    Args:
        tensor: a strided tensor.
    """
    alone = _OF_ONE_TENSOR + (view_base(tensor) is not None)
    return storage_use_count(storage_address(tensor.untyped_storage())) <= alone
