"""Which tensors have no values: a flag on their storage, so that views share it."""

from typing import Any
from weakref import WeakSet

import torch

from baechi.torchlib.tensors.storage import storage_object

_VALUELESS = "_baechi_valueless"

MADE: WeakSet[Any] = WeakSet()
"""Storages of tensors that were made valueless, and are alive."""

_written: WeakSet[Any] = WeakSet()


def is_valueless(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no values."""
    return hasattr(storage_object(tensor), _VALUELESS)


def forget_values(tensor: torch.Tensor) -> None:
    """Mark a tensor, and all that share its storage, as valueless: values that it has are out of date."""
    storage = storage_object(tensor)
    if not hasattr(storage, _VALUELESS):
        setattr(storage, _VALUELESS, True)
        _written.add(storage)


def made_valueless(tensor: torch.Tensor) -> torch.Tensor:
    """Mark a new tensor, in whose memory nothing was written, as valueless."""
    storage = storage_object(tensor)
    setattr(storage, _VALUELESS, True)
    MADE.add(storage)
    return tensor


def remember_values() -> None:
    """What was only written without values, and so was not written, has the values that it had."""
    for storage in list(_written):
        vars(storage).pop(_VALUELESS, None)
    _written.clear()
