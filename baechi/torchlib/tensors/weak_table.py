"""A table by tensor that keeps no tensor alive."""

import weakref
from typing import Any, Generic, TypeVar

import torch

_Value = TypeVar("_Value")


class _Entry(weakref.ref[torch.Tensor]):
    """A weak reference to a tensor, with its value."""

    __slots__ = ("key", "value")
    key: int
    value: Any


class WeakTable(Generic[_Value]):
    """Values by tensor; an entry goes with its tensor. (Torch's own takes ten times as long.)

    A tensor that only torch's C++ code holds keeps its Python object, and with it its entry. An exception of
    a signal's handler may keep an entry here whose tensor is gone: another tensor may have its id by then.
    """

    __slots__ = ("__weakref__", "_entries", "_forget")

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        table = weakref.ref(self)

        def forget(entry: Any) -> None:
            here = table()
            if here is not None:
                here._entries.pop(entry.key, None)

        self._forget = forget

    def get(self, tensor: torch.Tensor) -> _Value | None:
        """The value of a tensor; None if it has none."""
        entry = self._entries.get(id(tensor))
        return None if entry is None or entry() is not tensor else entry.value

    def put(self, tensor: torch.Tensor, value: _Value) -> None:
        """Give a tensor a value."""
        entry = _Entry(tensor, self._forget)
        entry.key, entry.value = id(tensor), value
        self._entries[entry.key] = entry

    def pop(self, tensor: torch.Tensor) -> _Value | None:
        """Take a tensor's value out; None if it has none."""
        entry = self._entries.pop(id(tensor), None)
        return None if entry is None or entry() is not tensor else entry.value
