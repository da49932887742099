"""A table by tensor that keeps no tensor alive."""

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

_Value = TypeVar("_Value")


class _Entry(weakref.ref[torch.Tensor]):
    """A weak reference to a tensor, with its value.

    An interrupt inside of `forget` leaves the entry of a dead tensor, and another tensor may get its id.
    So an entry counts only for the tensor that it refers to.
    """

    __slots__ = ("key", "value")
    key: int
    value: Any


class WeakTable(Generic[_Value]):
    """Values by tensor; an entry goes with its tensor. (Torch's own takes ten times as long.)

    A tensor that only torch's C++ code holds keeps its Python object, and with it its entry.
    """

    __slots__ = ("__weakref__", "_entries", "_forget")

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        table = weakref.ref(self)

        def forget(entry: Any) -> None:
            here, key = table(), entry.key
            # a tensor that got this id may have an entry of its own by now
            if here is not None and here._entries.get(key) is entry:
                here._entries.pop(key, None)

        self._forget = forget

    def get(self, tensor: torch.Tensor) -> _Value | None:
        """The value of a tensor; None if it has none."""
        entry = self._entries.get(id(tensor))
        return entry.value if entry is not None and entry() is tensor else None

    def put(self, tensor: torch.Tensor, value: _Value) -> None:
        """Give a tensor a value."""
        entry = _Entry(tensor, self._forget)
        entry.key, entry.value = id(tensor), value
        self._entries[entry.key] = entry

    def get_or_put(self, tensor: torch.Tensor, make: Callable[[], _Value]) -> _Value:
        """The value of a tensor; if it has none, it is given a new one."""
        entry = self._entries.get(id(tensor))
        if entry is not None and entry() is tensor:
            known: _Value = entry.value
            return known
        value = make()
        self.put(tensor, value)
        return value

    def pop(self, tensor: torch.Tensor) -> _Value | None:
        """Take a tensor's value out; None if it has none."""
        entry = self._entries.pop(id(tensor), None)
        return entry.value if entry is not None and entry() is tensor else None
