"""Tables: the mutable containers of Python objects. Their content is noted, compared and restored.

A table is a dict (also an object's `__dict__`), a list, a set, a deque, the variable of a closure, or
the slots of an object. So are the numbers of an array that is no tensor, where one asks for them. Only
methods of the base type are called (`dict.update(table, ...)`): a subclass may override `__setitem__`, and
restoring must not run that code.
"""

import sys
import types
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
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
        size = len(self.owner) if isinstance(self.owner, array) else self.owner.size
        return int(size * self.owner.itemsize)


def numbers_of(item: Any) -> Numbers | None:
    """What is in an array that is no tensor and can be written in place; None for all else.

    Args:
        item: anything.
    """
    if isinstance(item, (array, bytearray)):
        return Numbers(item)
    if not _is_numpys(item) or item.dtype.hasobject or not item.flags.writeable or not item.size:
        return None
    return Numbers(item)


def _is_numpys(item: Any) -> bool:
    return "numpy" in sys.modules and isinstance(item, sys.modules["numpy"].ndarray)


def tables_of(item: Any) -> list[Any]:
    """The tables that an object is, or has.

    Args:
        item: anything.
    """
    tables: list[Any] = []
    if isinstance(item, (dict, list, set, deque, types.CellType)):
        tables.append(item)
    # an OrderedDict has one, too, which no code writes, and which is made when it is asked for
    attributes = None if type(item) is OrderedDict else getattr(item, "__dict__", None)
    if type(attributes) is dict:  # a class has a mappingproxy, which cannot be written
        tables.append(attributes)
    kind: Any = type(item)
    names = slot_names(kind)
    if names:
        tables.append(Slots(item, names))
    return tables


@cache
def slot_names(kind: Any) -> tuple[str, ...]:
    """The slots of the objects of a class, as its methods name them.

    Args:
        kind: the class.
    """
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
    """What is in a table now.

    Args:
        table: the table.

    Returns:
        A plain dict, or a list; of a set a set; of numbers bytes.
    """
    if isinstance(table, Numbers):
        return bytes(table.owner) if isinstance(table.owner, bytearray) else table.owner.tobytes()
    if isinstance(table, dict):
        return dict(table)
    if isinstance(table, Slots):
        return {name: getattr(table.owner, name) for name in table.names if hasattr(table.owner, name)}
    if isinstance(table, types.CellType):
        try:
            return [table.cell_contents]
        except ValueError:  # nothing was assigned to the variable yet
            return []
    return set(table) if isinstance(table, set) else list(table)


def items_of(content: Any) -> Iterable[Any]:
    """The objects in what `content_of` returned.

    Args:
        content: a table's content.
    """
    return content.values() if isinstance(content, dict) else content


def differ(one: Any, other: Any) -> bool:
    """Whether two contents hold different objects, or the same in another order.

    Args:
        one: a table's content.
        other: of the same table, at another time.
    """
    if isinstance(one, bytes) or len(one) != len(other):
        return bool(one != other)
    if isinstance(one, dict):
        # keys by equality, as dicts do; values by identity, since `==` of two tensors is a tensor
        pairs = zip(one.items(), other.items(), strict=True)
        return any((a is not b and a != b) or left is not right for (a, left), (b, right) in pairs)
    if isinstance(one, set):
        return {id(item) for item in one} != {id(item) for item in other}
    return any(a is not b for a, b in zip(one, other, strict=True))


def refill(table: Any, content: Any) -> None:
    """Restore the content of a table.

    Args:
        table: the table.
        content: what `content_of` returned.
    """
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
        owner[...] = sys.modules["numpy"].frombuffer(content, owner.dtype).reshape(owner.shape)
    else:
        owner[:] = array(owner.typecode, content) if isinstance(owner, array) else content
