"""The tensors that objects reach: in containers, attributes, closures, to any depth."""

import functools
import gc
import sys
import types
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
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


class Contents:
    """The tensors that some values reach.

    Args:
        *values: anything, searched to any depth.
    """

    def __init__(self, *values: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        self.unseen = False
        """Whether an iterator was found, whose contents cannot be read without using it up."""
        seen: dict[int, Any] = {}
        waiting = list(reversed(values))
        while waiting:
            item = waiting.pop()
            if type(item) not in _PLAIN and id(item) not in seen:
                seen[id(item)] = item
                waiting += self._look_into(item, type(item))

    def _look_into(self, item: Any, kind: Any) -> Iterable[Any]:
        """Note one object; returns the objects that it refers to."""
        if issubclass(kind, torch.Tensor):
            self.tensors.append(item)
            return ()
        if issubclass(kind, (tuple, frozenset)):
            return members_of(item)
        if issubclass(kind, _VIEWS):  # a view of a dict refers to that dict only
            return gc.get_referents(item)
        if issubclass(kind, types.FunctionType):
            return (*(item.__closure__ or ()), item.__defaults__, item.__kwdefaults__)
        if issubclass(kind, types.MethodType):
            return item.__self__, item.__func__
        if issubclass(kind, functools.partial):
            return item.func, item.args, item.keywords
        if issubclass(kind, slice):
            return item.start, item.stop, item.step
        if _is_closed(kind) or issubclass(kind, _CLOSED):
            return ()
        self.unseen |= issubclass(kind, Iterator)
        return [inside for table in tables_of(item) for inside in items_of(content_of(table))]


@functools.cache
def _is_closed(kind: type) -> bool:
    """Whether objects of a class are not searched, since they hold no tensors: locks, loggers, graphs."""
    module = str(kind.__module__)
    return module.partition(".")[0] in _STANDARD or module.startswith(_CLOSED_MODULES)
