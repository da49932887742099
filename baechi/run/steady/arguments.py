"""The tensors among a call's arguments, where these are plain: tensors, numbers, strings, lists of such.

Objects, dicts and `torch.device`s are not plain: the full path looks into the first two, and replaces
the third.
"""

from collections.abc import Iterable
from typing import Any

import torch

_NO_TENSORS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size, slice, type(...)}
)


def plain_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """The tensors among plain arguments, in the order of the code, each as often as it is there."""
    found: list[torch.Tensor] = []
    if not _collect(args, found) or (kwargs and not _collect(tuple(kwargs.values()), found)):
        return None
    return found


def has_list(values: Iterable[Any]) -> bool:
    """Whether there is a list among plain values: a layer may put something into it."""
    for value in values:  # a generator would take twice as long
        kind = type(value)
        if kind is list or (kind is tuple and has_list(value)):
            return True
    return False


def _collect(values: list[Any] | tuple[Any, ...], found: list[torch.Tensor]) -> bool:
    """Add the tensors among some values, at any depth of lists; returns whether all values are plain."""
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) not in _NO_TENSORS:
            kind = type(value)
            if (kind is not tuple and kind is not list) or not _collect(value, found):
                return False
    return True
