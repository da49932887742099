"""Whether a table holds what it held before: the same objects, in the same order."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest

from baechi.torchlib.modules.tables import Together, content_of, has_changed, refill

KEY = (1, 2)
SAME_KEY = (*KEY, 3)[:2]  # equal, and another object
OLD, NEW = [0], [0]  # equal, and not the same object


def to_the_end(table: Any) -> None:
    table["a"] = table.pop("a")


def with_an_equal_key(table: Any) -> None:
    table[SAME_KEY] = table.pop(KEY)


CHANGES: list[tuple[str, Callable[[], Any], Callable[[Any], object], bool]] = [
    ("a value", lambda: {"a": OLD, KEY: OLD}, lambda table: table.update(a=NEW), True),
    ("a key more", lambda: {"a": OLD}, lambda table: table.update(b=OLD), True),
    ("another key", lambda: {"a": OLD}, lambda table: table.update({"b": table.pop("a")}), True),
    ("the order", lambda: {"a": OLD, KEY: OLD}, to_the_end, True),
    ("an equal key", lambda: {"a": OLD, KEY: OLD}, with_an_equal_key, False),
    ("the same value", lambda: {"a": OLD}, lambda table: table.update(a=OLD), False),
    ("an item", lambda: [OLD], lambda table: table.__setitem__(0, NEW), True),
    ("an item less", lambda: [OLD], lambda table: table.pop(), True),
    ("no item", lambda: [OLD], lambda table: table.append(table.pop()), False),
    ("an ordered one", lambda: OrderedDict(a=OLD, b=OLD), lambda table: table.move_to_end("a"), True),
    ("a deque", lambda: deque([OLD, NEW]), lambda table: table.rotate(), True),
    ("a set", lambda: {1, 2}, lambda table: table.add(3), True),
]


@pytest.mark.parametrize(
    ("make", "change", "changes"), [row[1:] for row in CHANGES], ids=[r[0] for r in CHANGES]
)
def test_what_has_changed(make: Callable[[], Any], change: Callable[[Any], object], changes: bool) -> None:
    table = make()
    before, together = content_of(table), Together([{"b": OLD}, table, [NEW]])
    assert not has_changed(table, before) and together.hold()
    change(table)
    assert has_changed(table, before) == changes
    by_itself = any(one is table for one in together.others)
    assert not changes or by_itself or not together.hold()
    refill(table, before)
    assert not has_changed(table, before)


def test_items_that_change_places_between_tables_are_seen() -> None:
    """All tables together hold the same objects in the same order."""
    one, other = [OLD, NEW], [OLD]
    together = Together([one, other])
    other.insert(0, one.pop())
    assert not together.hold()
