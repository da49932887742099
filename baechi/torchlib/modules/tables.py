"""Tables: the mutable containers of Python objects. Their content is noted, compared and restored.

A table is a dict (also an object's `__dict__`), a list, a set, a deque, the variable of a closure, or
the slots of an object. So are the numbers of an array that is no tensor, where one asks for them. Only
methods of the base type are called (`dict.update(table, ...)`, `tuple.__iter__`): a subclass may override
`__setitem__` or raise from `__len__`, and noting and restoring must not run that code. For the same reason
`type(item)` says what an item is, not `isinstance`, which asks for `item.__class__`.
"""

import sys
import types
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import is_
from typing import Any


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of an object.

    Args:
        owner: the object.
        names: of its slots.
    """

    owner: Any
    names: tuple[str, ...]


SMALL_BYTES = 2**20
"""A larger array is taken for data, which is read only: its numbers are neither kept nor compared."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is in an array of numpy's, an `array.array` or a `bytearray`.

    Args:
        owner: the array.
    """

    owner: Any

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        if isinstance(self.owner, bytearray):
            return len(self.owner)
        size = len(self.owner) if isinstance(self.owner, array) else _numpys(self.owner).size
        return int(size * self.owner.itemsize)


def numbers_of(item: Any) -> Numbers | None:
    """What is in an array that is no tensor and can be written in place; None for all else."""
    if issubclass(type(item), (array, bytearray)):
        return Numbers(item)
    if not _is_numpys(item):
        return None
    plain = _numpys(item)
    return None if plain.dtype.hasobject or not plain.flags.writeable or not plain.size else Numbers(item)


def _is_numpys(item: Any) -> bool:
    return "numpy" in sys.modules and issubclass(type(item), sys.modules["numpy"].ndarray)


def _numpys(item: Any) -> Any:
    """The same memory as an array of numpy's own class."""
    plain = sys.modules["numpy"].ndarray
    return item if type(item) is plain else plain.view(item, plain)


def tables_of(item: Any) -> list[Any]:
    """The tables that an object is, or has."""
    tables: list[Any] = []
    kind: Any = type(item)
    if issubclass(kind, (dict, list, set, deque, types.CellType)):
        tables.append(item)
    # an OrderedDict has one, too, which no code writes, and which is made when it is asked for
    reader = None if kind is OrderedDict else _attributes_reader(kind)
    attributes = None if reader is None else reader(item)
    if type(attributes) is dict:  # a class has a mappingproxy, which cannot be written
        tables.append(attributes)
    names = slot_names(kind)
    if names:
        tables.append(Slots(item, names))
    return tables


_WRITTEN_IN_C = (types.GetSetDescriptorType, types.MemberDescriptorType)


@cache
def _attributes_reader(kind: Any) -> Callable[[Any], Any] | None:
    """What reads the `__dict__` of the objects of a class; None if it has none, or one by code of its own."""
    for one in kind.__mro__:
        if "__dict__" in vars(one):
            member = vars(one)["__dict__"]
            return member.__get__ if isinstance(member, _WRITTEN_IN_C) else None
    return None


def members_of(item: tuple[Any, ...] | frozenset[Any]) -> list[Any]:
    """What is in a tuple or frozenset, by the methods of the base type."""
    return list(tuple.__iter__(item) if isinstance(item, tuple) else frozenset.__iter__(item))


@cache
def slot_names(kind: Any) -> tuple[str, ...]:
    """The slots of the objects of a class, as its methods name them."""
    # types written in C have member descriptors too, but no `__slots__`: those are not ours to write.
    # The descriptors are read, not `__slots__` itself: there private names (`__x`) are not mangled yet
    with_slots = [one for one in kind.__mro__ if "__slots__" in vars(one)]
    return tuple(
        name
        for one in with_slots
        for name, member in vars(one).items()
        if isinstance(member, types.MemberDescriptorType)
    )


def content_of(table: Any) -> Any:
    """What is in a table now."""
    if isinstance(table, Numbers):
        if isinstance(table.owner, bytearray):
            return bytes(table.owner)
        return table.owner.tobytes() if isinstance(table.owner, array) else _numpys(table.owner).tobytes()
    if type(table) is dict:  # as nearly always
        return dict(table)
    if isinstance(table, dict):
        kind = OrderedDict if isinstance(table, OrderedDict) else dict  # it has its own record of the order
        return dict(kind.items(table))
    if isinstance(table, Slots):
        return _content_of_slots(table)
    if isinstance(table, types.CellType):
        try:
            return [table.cell_contents]
        except ValueError:  # nothing was assigned to the variable yet
            return []
    if isinstance(table, set):
        return set(set.__iter__(table))
    return list.__getitem__(table, slice(None)) if isinstance(table, list) else list(deque.__iter__(table))


def _content_of_slots(slots: Slots) -> dict[str, Any]:
    found = {}
    for name in slots.names:
        try:
            found[name] = object.__getattribute__(slots.owner, name)
        except AttributeError:  # nothing was assigned to it yet
            continue
    return found


def items_of(content: Any) -> Iterable[Any]:
    """The objects in what `content_of` returned."""
    return content.values() if isinstance(content, dict) else content


def differ(one: Any, other: Any) -> bool:
    """Whether two contents hold different objects, or the same in another order."""
    if isinstance(one, bytes) or len(one) != len(other):
        return bool(one != other)
    if isinstance(one, dict):
        # keys by equality, as dicts do; values by identity, since `==` of two tensors is a tensor
        pairs = zip(one.items(), other.items(), strict=True)
        return any((a is not b and a != b) or left is not right for (a, left), (b, right) in pairs)
    if isinstance(one, set):
        return {id(item) for item in one} != {id(item) for item in other}
    return any(a is not b for a, b in zip(one, other, strict=True))


def has_changed(table: Any, before: Any) -> bool:
    """Whether a table holds something else than `content_of` returned before."""
    kind = type(table)
    if kind is dict:  # as nearly always: most often with the very keys and values that it had
        same = len(table) == len(before) and all(map(is_, table, before))
        if same and all(map(is_, table.values(), before.values())):
            return False
    elif kind is list:
        return len(table) != len(before) or not all(map(is_, table, before))
    return differ(content_of(table), before)


class Together:
    """Many plain tables, and what they hold now: whether they still do is asked of all at once.

    Args:
        tables: of any kind.

    Attributes:
        others: those among them of a kind that has to be asked by itself.
    """

    def __init__(self, tables: Iterable[Any]) -> None:
        self.others: list[Any] = []
        self._dicts: list[dict[Any, Any]] = []
        self._rows: list[Any] = []
        for table in tables:
            if type(table) is dict:
                self._dicts.append(table)
            elif type(table) in (list, set, deque):
                self._rows.append(table)
            else:
                self.others.append(table)
        self._sizes = [*map(len, self._dicts), *map(len, self._rows)]
        self._items = list(self._items_now())

    def hold(self) -> bool:
        """Whether each holds the very objects that it held. (A set that was filled anew may seem not to.)"""
        sizes = [*map(len, self._dicts), *map(len, self._rows)]
        return sizes == self._sizes and all(map(is_, self._items_now(), self._items))

    def _items_now(self) -> Iterable[Any]:
        values = map(dict.values, self._dicts)
        return chain(
            chain.from_iterable(self._dicts), chain.from_iterable(values), chain.from_iterable(self._rows)
        )


def refill(table: Any, content: Any) -> None:
    """Restore the content of a table."""
    if isinstance(table, OrderedDict):  # methods of dict would bypass its own record of the order
        OrderedDict.clear(table)
        for key, value in content.items():
            OrderedDict.__setitem__(table, key, value)
    elif isinstance(table, dict):
        dict.clear(table)
        dict.update(table, content)
    elif isinstance(table, list):
        list.__setitem__(table, slice(None), content)
    elif isinstance(table, set):
        set.clear(table)
        set.update(table, content)
    elif isinstance(table, deque):
        deque.clear(table)
        deque.extend(table, content)
    elif isinstance(table, Slots):
        _refill_slots(table, content)
    elif isinstance(table, Numbers):
        _refill_numbers(table.owner, content)
    elif content:  # the variable of a closure; it is empty below if it had no value
        table.cell_contents = content[0]
    else:
        del table.cell_contents


def _refill_slots(slots: Slots, content: dict[str, Any]) -> None:
    for name in slots.names:
        if name in content:
            object.__setattr__(slots.owner, name, content[name])  # works for frozen dataclasses, too
        elif hasattr(slots.owner, name):
            object.__delattr__(slots.owner, name)


def _refill_numbers(owner: Any, content: bytes) -> None:
    if _is_numpys(owner):
        plain = _numpys(owner)
        plain[...] = sys.modules["numpy"].frombuffer(content, plain.dtype).reshape(plain.shape)
    else:
        owner[:] = array(owner.typecode, content) if isinstance(owner, array) else content
