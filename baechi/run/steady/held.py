"""What a layer holds, noted once: a layer that waits compares it with what it holds now, object by object.

    full path    searches the layer, and copies each list, dict and attribute table that it finds
    here         is each of these tables as it was, and does each weight look as it did?

A layer that holds other tensors than its own parameters and buffers is searched at each call. For what is
noted here stays from step to step, and must keep nothing alive but what the layer keeps anyway. So is a layer
that holds a deferred value: it may have to wait for it.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator
from itertools import chain, islice
from operator import call, is_
from typing import Any

import torch
from torch import nn

from baechi.run.deferred.tensor import is_deferred
from baechi.run.state.contents import Contents, look_of
from baechi.run.steady.reads import is_bare
from baechi.torchlib.modules.tables import content_of, differ, items_of, refill


class Held:
    """What a layer held when it was noted.

    Args:
        contents: all that the layer reaches.
        keeps_as_found: whether its code is known to change none of these tables.
    """

    __slots__ = (
        "_empty", "_keys", "_lists", "_looks", "_meant", "_others", "_tables", "_values", "_views",
        "ids", "keeps_as_found", "outcomes", "state",
    )  # fmt: skip

    def __init__(self, contents: Contents, *, keeps_as_found: bool = False) -> None:
        self.keeps_as_found = keeps_as_found
        self.state: Hashable = contents.state
        self.ids = frozenset([id(tensor) for tensor in contents.tensors])
        self.outcomes: dict[Hashable, Any] = {}
        """What calls returned, by how their arguments looked; see `Foresight`."""
        self._empty: list[Any] = []
        self._lists: list[tuple[list[Any], tuple[Any, ...]]] = []
        self._others: list[tuple[Any, Any]] = []
        filled: list[tuple[Any, Any]] = []
        for table, content in contents.found:
            if not content and isinstance(table, (dict, list, set)):
                self._empty.append(table)
            elif type(table) is list:
                self._lists.append((table, tuple(map(_meaning, content))))
            elif isinstance(table, dict):
                filled.append((table, content))
            else:
                self._others.append((table, content))
        # all dicts are compared in one pass, those that hold tensors last
        filled.sort(key=lambda one: any(isinstance(value, torch.Tensor) for value in one[1].values()))
        self._tables = [table for table, _ in filled]
        self._views = [table.values() for table in self._tables]
        self._keys = [list(content) for _, content in filled]
        values = [value for _, content in filled for value in content.values()]
        plain = next((n for n, value in enumerate(values) if isinstance(value, torch.Tensor)), len(values))
        self._values, self._meant = values[:plain], [_meaning(value) for value in values[plain:]]
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
        if [*map(list, self._tables)] != self._keys:
            return False
        if not all(map(is_, chain.from_iterable(self._views), chain(self._values, map(call, self._meant)))):
            return False
        return not (self._lists or self._others) or self._rest_is_as_noted()

    def _rest_is_as_noted(self) -> bool:
        for items, values in self._lists:
            if len(items) != len(values) or not all(map(is_, items, [value() for value in values])):
                return False
        return not any(differ(content_of(table), content) for table, content in self._others)

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
        kept = iter([*self._values, *[value() for value in self._meant]])
        for table, keys in zip(self._tables, self._keys, strict=True):
            yield table, dict(zip(keys, islice(kept, len(keys)), strict=True))
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
    foreign = any(id(tensor) not in own or is_deferred(tensor) for tensor in contents.tensors)
    if contents.unseen or foreign or any(_is_odd(table, content) for table, content in contents.found):
        return None
    return Held(contents, keeps_as_found=all(map(_is_torchs_own, layer.modules())))


def _is_torchs_own(module: nn.Module) -> bool:
    """Whether a module's code is torch's own, which sets no attribute in `forward`; a hook of others may."""
    return type(module).__module__.startswith("torch.nn.modules.") and is_bare(module)


def _is_odd(table: Any, content: Any) -> bool:
    """Whether a table is neither a list nor a dict, and holds tensors."""
    plain = type(table) is list or isinstance(table, dict)
    return not plain and any(isinstance(item, torch.Tensor) for item in items_of(content))


def _meaning(value: Any) -> Callable[[], Any]:
    """A function that returns a value; it keeps no tensor alive."""
    return weakref.ref(value) if isinstance(value, torch.Tensor) else lambda: value
