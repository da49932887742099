"""The tensors among a call's arguments, where these are plain: tensors, numbers, strings, lists of such.

Objects, dicts and `torch.device`s are not plain: the full path looks into the first two, and replaces
the third.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch

from baechi.torchlib.private.tensors import REGISTERED_CONTAINERS
from baechi.torchlib.tensors.pytree import PLAIN

_NO_TENSORS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size, slice, type(...)}
)

_NO_OBJECTS = (*PLAIN, type(None), torch.Tensor, list, tuple, Mapping)


def plain_tensors(
    args: tuple[Any, ...], kwargs: dict[str, Any], objects: list[Any] | None = None
) -> list[torch.Tensor] | None:
    """The tensors among plain arguments, in the order of the code, each as often as it is there.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        objects: if given, there may be objects, too, which are added to it.

    Returns:
        The tensors; None if other values are among the arguments.
    """
    found: list[torch.Tensor] = []
    if not _collect(args, found, objects) or (
        kwargs and not _collect(tuple(kwargs.values()), found, objects)
    ):
        return None
    return found


def is_no_tensor(value: Any) -> bool:
    """Whether a value is plain, and neither a tensor nor a list of values."""
    return type(value) in _NO_TENSORS


def is_object(value: Any) -> bool:
    """Whether a value is neither plain, nor a tensor, nor a container that may hold some in its items."""
    kind: Any = type(value)
    return _are_objects(kind) and kind not in REGISTERED_CONTAINERS


@cache
def _are_objects(kind: Any) -> bool:
    return not (issubclass(kind, _NO_OBJECTS) or dataclasses.is_dataclass(kind))


def has_list(values: Iterable[Any]) -> bool:
    """Whether there is a list among plain values: a layer may put something into it."""
    for value in values:  # a generator would take twice as long
        kind = type(value)
        if kind is list or (kind is tuple and has_list(value)):
            return True
    return False


def _collect(
    values: list[Any] | tuple[Any, ...], found: list[torch.Tensor], objects: list[Any] | None
) -> bool:
    """Add the tensors among some values, at any depth of lists; returns whether all values are plain."""
    for value in values:
        kind = type(value)
        if kind is torch.Tensor:  # most often
            found.append(value)
        elif kind not in _NO_TENSORS:
            if kind is tuple or kind is list:
                if not _collect(value, found, objects):
                    return False
            elif isinstance(value, torch.Tensor):
                found.append(value)
            elif objects is None or not is_object(value):
                return False
            else:
                objects.append(value)
    return True
