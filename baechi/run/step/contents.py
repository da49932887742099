"""The tensors that objects reach: in containers, attributes, closures, to any depth."""

import functools
import gc
import sys
import types
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any

import torch

from baechi.torchlib.modules.tables import content_of, items_of, members_of, tables_of
from baechi.torchlib.private.operators import MACHINERY

_PLAIN = frozenset(
    {
        bool, int, float, complex, str, bytes, range, type(None), type(Ellipsis), torch.dtype,
        torch.device, torch.layout, torch.memory_format, torch.Size,
    }
)  # fmt: skip
"""Immutable types that hold no tensors."""

_VIEWS = (KeysView, ValuesView, ItemsView, types.MappingProxyType)
_CLOSED = (type, types.ModuleType, types.BuiltinFunctionType, torch.Generator)
_CLOSED_MODULES = (*MACHINERY, "baechi.")
_STANDARD = frozenset(sys.stdlib_module_names) - {"builtins", "collections", "functools", "types"}


Look = Callable[[Any], Iterable[Any]]
"""From an object, the objects that it refers to."""

Until = Callable[[torch.Tensor], bool]


class Contents:
    """The tensors that some values reach.

    Args:
        *values: anything, searched to any depth.
        until: asked of each tensor; the search is over where it says yes.

    Attributes:
        tensors: what was found.
        unseen: whether an iterator was found, whose contents cannot be read without using it up.
        is_met: whether `until` said yes.
    """

    def __init__(self, *values: Any, until: Until | None = None) -> None:
        self.tensors: list[torch.Tensor] = []
        self.unseen = self.is_met = False
        seen: dict[int, Any] = {}
        waiting = list(reversed(values))
        while waiting:
            item = waiting.pop()
            kind: Any = type(item)
            if kind in _PLAIN or id(item) in seen:
                continue
            seen[id(item)] = item
            if issubclass(kind, torch.Tensor):
                self.tensors.append(item)
                if until is not None and until(item):
                    self.is_met = True
                    return
                continue
            look = _look_of(kind)
            if look is not None:
                self.unseen |= look is _into_iterator
                waiting += reversed(list(look(item)))


@functools.cache
def _look_of(kind: Any) -> Look | None:
    """How to look into objects of a class; None if they hold no tensors: locks, loggers, graphs."""
    for base, look in _LOOKS:
        if issubclass(kind, base):
            return look
    module = str(kind.__module__)
    closed = module.partition(".")[0] in _STANDARD or module.startswith(_CLOSED_MODULES)
    if closed or issubclass(kind, _CLOSED):
        return None
    return _into_iterator if issubclass(kind, Iterator) else _into_tables


def _into_function(item: Any) -> Iterable[Any]:
    return (*(item.__closure__ or ()), item.__defaults__, item.__kwdefaults__)


def _into_method(item: Any) -> Iterable[Any]:
    return item.__self__, item.__func__


def _into_partial(item: Any) -> Iterable[Any]:
    return item.func, item.args, item.keywords


def _into_slice(item: Any) -> Iterable[Any]:
    return item.start, item.stop, item.step


def _into_tables(item: Any) -> Iterable[Any]:
    return [inside for table in tables_of(item) for inside in items_of(content_of(table))]


def _into_iterator(item: Any) -> Iterable[Any]:
    return _into_tables(item)


_LOOKS: tuple[tuple[Any, Look], ...] = (
    ((tuple, frozenset), members_of),
    (_VIEWS, gc.get_referents),  # a view of a dict refers to that dict only
    (types.FunctionType, _into_function),
    (types.MethodType, _into_method),
    (functools.partial, _into_partial),
    (slice, _into_slice),
)
"""By class, how to look into its objects."""
