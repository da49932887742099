"""What a layer holds, noted once: a layer that waits compares it with what it holds now, object by object.

    full path    searches the layer, and copies each list, dict and attribute table that it finds
    here         is each of these tables as it was, and does each weight look as it did?

A layer that holds other tensors than its own parameters and buffers is searched at each call. For what is
noted here stays from step to step, and must keep nothing alive but what the layer keeps anyway.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator
from operator import is_
from typing import Any

import torch
from torch import nn

from baechi.run.state.contents import Contents, look_of
from baechi.torchlib.modules.tables import content_of, differ, items_of, refill

_Table = tuple[Any, tuple[Any, ...], tuple[Any, ...]]
"""A dict, and its keys and values as they were noted; where it holds tensors, functions that return these."""


class Held:
    """What a layer held when it was noted.

    Args:
        contents: all that the layer reaches.
    """

    __slots__ = ("_empty", "_filled", "_lists", "_looks", "_others", "_weights", "ids", "outcomes", "state")

    def __init__(self, contents: Contents) -> None:
        self.state: Hashable = contents.state
        self.ids = frozenset([id(tensor) for tensor in contents.tensors])
        self.outcomes: dict[Hashable, Any] = {}
        """What calls returned, by how their arguments looked; see `Foresight`."""
        self._empty: list[Any] = []
        self._filled: list[_Table] = []
        self._weights: list[_Table] = []
        self._lists: list[tuple[list[Any], tuple[Any, ...]]] = []
        self._others: list[tuple[Any, Any]] = []
        for table, content in contents.found:
            if not content and isinstance(table, (dict, list, set)):
                self._empty.append(table)
            elif type(table) is list:
                self._lists.append((table, tuple(map(_meaning, content))))
            elif not isinstance(table, dict):
                self._others.append((table, content))
            else:
                kept, meant = self._filled, tuple(content.values())
                if any(isinstance(value, torch.Tensor) for value in meant):
                    kept, meant = self._weights, tuple([_meaning(value) for value in meant])
                kept.append((table, tuple(content), meant))
        self._looks = [(weakref.ref(tensor), look_of(tensor)) for tensor in contents.tensors]

    def tensors(self) -> list[torch.Tensor] | None:
        """The tensors that the layer holds, if all that it holds is as it was noted; else None."""
        if not self.is_as_noted():
            return None
        found = []
        for reference, look in self._looks:
            tensor = reference()
            if tensor is None or look_of(tensor) != look:
                return None
            found.append(tensor)
        return found

    def is_as_noted(self) -> bool:
        """Whether each list, dict and attribute table holds the same objects as when it was noted."""
        if any(self._empty):
            return False
        for table, names, values in self._filled:
            if tuple(table) != names or not all(map(is_, table.values(), values)):
                return False
        for table, names, values in self._weights:
            if tuple(table) != names or not all(map(is_, table.values(), [value() for value in values])):
                return False
        for items, values in self._lists:
            if len(items) != len(values) or not all(map(is_, items, [value() for value in values])):
                return False
        for table, content in self._others:
            if differ(content_of(table), content):
                return False
        return True

    def refilled(self) -> list[tuple[Any, Any]]:
        """Put everything back that was noted.

        Returns:
            Each table, and what was in it until now.
        """
        present = [(table, content_of(table)) for table, _ in self._noted()]
        for table, content in self._noted():
            refill(table, content)
        return present

    def _noted(self) -> Iterator[tuple[Any, Any]]:
        for table in self._empty:
            yield table, type(table)() if type(table) in (list, set) else {}
        for table, names, values in self._filled:
            yield table, dict(zip(names, values, strict=True))
        for table, names, values in self._weights:
            yield table, dict(zip(names, [value() for value in values], strict=True))
        for items, values in self._lists:
            yield items, [value() for value in values]
        yield from self._others


def held_by(layer: nn.Module) -> Held | None:
    """Note what a layer holds; None if it has to be searched at each call.

    Args:
        layer: the layer.
    """
    contents = Contents(layer)
    own = {id(tensor) for tensor in (*layer.parameters(), *layer.buffers())}
    foreign = any(id(tensor) not in own for tensor in contents.tensors)
    if contents.unseen or foreign or any(_is_odd(table, content) for table, content in contents.found):
        return None
    return Held(contents)


def _is_odd(table: Any, content: Any) -> bool:
    """Whether a table is neither a list nor a dict, and holds tensors."""
    plain = type(table) is list or isinstance(table, dict)
    return not plain and any(isinstance(item, torch.Tensor) for item in items_of(content))


def _meaning(value: Any) -> Callable[[], Any]:
    """A function that returns a value; it keeps no tensor alive."""
    return weakref.ref(value) if isinstance(value, torch.Tensor) else lambda: value
