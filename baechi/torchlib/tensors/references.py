"""Who else has a tensor: autograd, views, variables."""

import functools
import sys

import torch

from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.private.tensors import storage_address, storage_use_count, use_count, view_base

_held = [object()]
"""Has one reference to something."""


def references_of_a_call() -> int:
    """What `sys.getrefcount` says inside of a function of an argument that its caller alone refers to.

    A hook into the evaluation of frames adds one: the caller's stack then holds an argument, too.
    torch.compile leaves its own hook behind when it could not capture a function.
    """
    return _counted(_held[0])


def _counted(of: object) -> int:
    return sys.getrefcount(of)


@functools.cache
def _of_one() -> tuple[int, int, int]:
    """References to a storage of one tensor, and to the base of one view: by Python, by torch.

    Asked of this torch: 2.9 counts one less than 2.13, where the Python objects of both count, too.
    """
    with without_dispatch_modes(), without_torch_function():
        one, view = torch.empty(1, device="cpu"), torch.empty(1, device="cpu").view(1, 1)
        base = view_base(view)
        assert base is not None
        of_storage = storage_use_count(storage_address(one.untyped_storage()))
        return min(of_storage, 2), min(sys.getrefcount(base), 3), min(use_count(base), 2)


def is_last_reference(tensor: torch.Tensor) -> bool:
    """Whether a tensor and its memory are gone when the caller drops its one reference.

    Many kernels return a view of what they made; a base that has no other view goes with it.
    """
    if sys.getrefcount(tensor) > references_of_a_call() or use_count(tensor) > 1:
        return False
    (alone, of_python, of_torch), base = _of_one(), view_base(tensor)
    if base is not None:
        if sys.getrefcount(base) > of_python or use_count(base) > of_torch:
            return False
        alone += 1
    return storage_use_count(storage_address(tensor.untyped_storage())) <= alone


def has_memory_alone(tensor: torch.Tensor) -> bool:
    """Whether no other tensor shows the memory of one, but for what it is itself a view of.

    A sparse one has several, and nobody knows.
    """
    if tensor.layout != torch.strided:
        return False
    alone = _of_one()[0] + (view_base(tensor) is not None)
    return storage_use_count(storage_address(tensor.untyped_storage())) <= alone
