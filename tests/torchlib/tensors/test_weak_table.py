"""A table by tensor that keeps none alive."""

import torch

from baechi.torchlib.tensors.weak_table import WeakTable


def test_an_entry_that_was_left_behind_is_no_one_elses() -> None:
    """Ctrl-C in the callback of a weak reference leaves the entry; another tensor gets the id."""
    table: WeakTable[str] = WeakTable()
    dead, alive = torch.zeros(1), torch.zeros(1)
    table.put(dead, "the dead one's")
    table._entries[id(alive)] = table._entries[id(dead)]
    assert table.get(alive) is None
    assert table.pop(alive) is None
    assert table.get(dead) == "the dead one's"


def test_a_late_callback_leaves_the_next_entry() -> None:
    """What it removes is its own entry, not that of a tensor that got the id meanwhile."""
    table: WeakTable[str] = WeakTable()
    first, second = torch.zeros(1), torch.zeros(1)
    table.put(first, "first")
    entry = table._entries[id(first)]
    table._entries[entry.key] = table._entries[id(first)].__class__(second, table._forget)
    table._entries[entry.key].key, table._entries[entry.key].value = entry.key, "second"
    del first
    table._forget(entry)
    assert [one.value for one in table._entries.values()] == ["second"]


def test_entries_go_with_their_tensors() -> None:
    """And only then."""
    table: WeakTable[int] = WeakTable()
    tensors = [torch.zeros(1) for _ in range(3)]
    for number, tensor in enumerate(tensors):
        table.put(tensor, number)
    del tensors[1], tensor
    assert [table.get(one) for one in tensors] == [0, 2] and len(table._entries) == 2
