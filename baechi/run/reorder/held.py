"""What a layer holds that decides what a call of it returns, noted: so that a change is seen.

    layer ──> its modules' tables (attributes, submodules, weights, hooks): which objects are in them
          ──> its tensors: their looks (shape, strides, dtype), not their values

A note is kept from step to step: a layer that holds the same objects is not looked through again. A layer
that waits is compared with its note when it launches. Notes refer to tensors weakly, so they keep no weight
that the model has dropped.
"""

import sys
import weakref
from collections.abc import Hashable
from functools import cache
from operator import is_
from typing import Any

import torch
from torch import nn

from baechi.run.reorder.deferred_values import Deferred, Meta
from baechi.run.reorder.named_state import Names, Variable
from baechi.run.steady.reads import is_bare
from baechi.torchlib.modules.tables import content_of
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.private.modules import backward_hooks, backward_pre_hooks, submodule_table

_ASIDE = ("_baechi", "_state_dict_", "_load_state_dict_")
"""How the attributes begin that decide no outcome."""

_CONTAINERS = (dict, list, set)

_NUMBERS = frozenset({bool, int, float, str})
"""Types of most attributes."""

_CONSTANTS = (
    bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Size, type, type(len),
)  # fmt: skip
"""Types of values that hold no tensors and never change."""


class Held:
    """What a layer holds, noted. If it holds something else at its launch, it was changed while it waited.

    Args:
        layer: the layer.
        keys: one object for all layers that look the same; it is extended.

    Attributes:
        why_not: why the layer may not wait wherever it is; empty if it may.
        key: stands for all that the layer holds that decides what a call returns.
    """

    def __init__(self, layer: nn.Module, keys: dict[Hashable, object]) -> None:
        self.why_not, self.key = "", object()
        self._modules = [*layer.modules()]
        self._kinds = [*map(type, self._modules)]
        self._tensors: list[weakref.ref[torch.Tensor]] = []
        self._looks: list[Hashable] = []
        """Of these tensors."""
        self._tables: list[_Table] = []
        """The attribute tables, dicts, lists and sets."""
        self._empty: list[Any] = []
        """Those in which is nothing."""
        self._constants: list[Variable] = []
        """Numbers and words that its code names: globals, attributes of classes."""
        self._inside: set[int] = set()
        if isinstance(layer, torch.jit.ScriptModule):
            self.why_not = "its code is not Python's"
        elif any(not is_bare(one) or backward_hooks(one) or backward_pre_hooks(one) for one in self._modules):
            self.why_not = "it has hooks, which see real tensors"
        else:
            try:
                self.key = keys.setdefault(self._look_through(layer), self.key)
            except TypeError:
                self.why_not = "only running it tells what it returns"

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Its weights and buffers."""
        return [tensor for refers in self._tensors if (tensor := refers()) is not None]

    def is_as_noted(self) -> bool:
        """Whether the layer holds the same objects now, and its tensors look the same."""
        if any(self._empty) or [*map(type, self._modules)] != self._kinds:
            return False
        for table in self._tables:  # no generator: this runs twice for each layer that waits
            if not table.is_as_noted():
                return False
        for constant in self._constants:
            if not constant.is_as_found:
                return False
        return [*map(_look_of_held, self.tensors)] == self._looks

    def _look_through(self, layer: nn.Module) -> Hashable:
        looks: list[Any] = []
        numbers = {id(module): number for number, module in enumerate(self._modules)}
        for module in self._modules:
            own, below = vars(module), submodule_table(module)
            self._tables.append(_Table(own))
            self._note(below)
            looks += [type(module), *[(name, numbers.get(id(child))) for name, child in below.items()]]
            for name, value in own.items():
                kind = type(value)
                if kind in _NUMBERS:  # most are
                    looks += [name, kind, value]
                elif value is not below and name != "forward" and not name.startswith(_ASIDE):  # ours, if any
                    looks += [name, self._look(value)]
        self._constants = [one for one in Names(layer).variables if type(one.value) in _NUMBERS]
        return *looks, *[(one.name, type(one.value), one.value) for one in self._constants]

    def _look(self, value: Any) -> Hashable:
        if value is None:
            return None
        if type(value) is weakref.ref:  # recurrent layers keep such references to their weights
            return self._look(value())
        if type(value) is Deferred or isinstance(value, nn.Module):  # a module that is no submodule
            raise TypeError(type(value).__name__)
        if isinstance(value, _CONTAINERS):
            self._note(value)
        if isinstance(value, dict):
            return type(value), *[(key, self._look(item)) for key, item in value.items()]
        if isinstance(value, (list, tuple, set, frozenset)):
            return type(value), *[self._look(item) for item in value]
        if type(value) is type(look_of) and value.__closure__ is None:
            return value
        if isinstance(value, torch.Tensor):
            self._tensors.append(weakref.ref(value))
            self._looks.append(_look_of_held(value))
            return self._looks[-1]
        if isinstance(value, _CONSTANTS) or not _is_pythons(type(value)):  # type: ignore[arg-type]
            return look_of(value)
        if id(value) in self._inside:
            raise TypeError("it refers to itself")
        self._inside.add(id(value))  # an object such as a configuration
        look = type(value), self._look(vars(value))
        self._inside.discard(id(value))
        return look

    def _note(self, table: Any) -> None:
        if table:
            self._tables.append(_Table(table))
        else:  # as tables of hooks are
            self._empty.append(table)


class _Table:
    """Which objects are in a table, noted.

    Args:
        table: a dict, list or set, or of a class derived from these.
    """

    __slots__ = ("_keys", "_table", "_tensors", "_values")

    def __init__(self, table: Any) -> None:
        content = content_of(table)
        self._table = table
        self._keys = [*content] if isinstance(content, dict) else []
        self._values = [*content.values()] if isinstance(content, dict) else [*content]
        self._tensors: list[tuple[int, weakref.ref[torch.Tensor]]] = []
        for index, value in enumerate(self._values):
            if isinstance(value, torch.Tensor):
                self._tensors.append((index, weakref.ref(value)))
                self._values[index] = _DROPPED

    def is_as_noted(self) -> bool:
        """Whether the same objects are in it now, in the same order."""
        content = self._table if type(self._table) is dict else content_of(self._table)
        values = self._values
        if len(content) != len(values):
            return False
        if self._tensors:
            values = values.copy()
            for index, refers in self._tensors:
                if (tensor := refers()) is not None:
                    values[index] = tensor
        if isinstance(content, dict):
            return all(map(is_, content.values(), values)) and [*content] == self._keys
        return all(map(is_, content, values))


_DROPPED = object()
"""In a note, what stands for a tensor that is no more."""


def look_of(value: Any) -> Hashable:
    """All of an argument that decides a call's outcome but the values in tensors."""
    if isinstance(value, torch.Tensor):
        if type(value) is Deferred:
            return value._baechi_meta
        with without_subclass_function():
            if value.layout != torch.strided or value.is_nested or value.is_conj() or value.is_neg():
                raise TypeError(value.layout)
            return Meta.of(value), type(value) is nn.Parameter
    if isinstance(value, _CONSTANTS):
        return type(value), value
    if isinstance(value, (tuple, list)):
        return type(value), tuple([look_of(item) for item in value])
    if isinstance(value, dict):
        return tuple([(key, look_of(item)) for key, item in value.items()])
    if isinstance(value, slice):
        return slice, look_of(value.start), look_of(value.stop), look_of(value.step)
    raise TypeError(type(value).__name__)


def _look_of_held(tensor: torch.Tensor) -> Hashable:
    """Its device is not among this: modes of the code may answer otherwise."""
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


@cache
def _is_pythons(kind: type) -> bool:
    """Whether all that objects of a class hold is in their `__dict__`: a class of a library's Python code."""
    roots = {one.__module__.partition(".")[0] for one in kind.__mro__ if one is not object}
    slots = any("__slots__" in vars(one) for one in kind.__mro__)
    return not slots and roots.isdisjoint((sys.stdlib_module_names - {"abc", "typing"}) | {"torch"})
