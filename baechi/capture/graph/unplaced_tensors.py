"""Tensors that are made of nothing (a mask, a number): they have no place until a node reads them.

The first node that does makes them, on its device, with the kernels that led to them. Others get them from
there.
"""

from collections.abc import Collection, Iterable, Mapping

from baechi.capture.graph.draft import Draft
from baechi.capture.graph.storage_state import StorageState
from baechi.capture.watch.trace import Op, Storage, Use


class Unplaced:
    """The kernels behind tensors without a place, until a node takes them in.

    Args:
        states: by storage, where it lies.
        on_host: nodes that run on the host, which give a tensor no place.
    """

    def __init__(self, states: Mapping[int, StorageState], on_host: Collection[str]) -> None:
        self._states = states
        self._on_host = on_host
        self._due: dict[int, dict[int, None]] = {}  # by storage, the numbers of kernels' events
        self._made: dict[int, int] = {}  # by storage, the number of the event that did
        self._charged: set[int] = set()

    def keeps(self, op: Op, draft: Draft) -> bool:
        """Whether what an operation makes is no device's yet, or is only brought there: nothing is copied."""
        return op.is_of_nothing or (op.brings and not self.is_own(op.reads[0], draft))

    def is_own(self, use: Use, draft: Draft) -> bool:
        """Whether a tensor without a place was made since a node began."""
        return self._made.get(use.storage.index, -1) >= draft.first

    def note(self, op: Op, number: int, draft: Draft | None) -> None:
        """Note an operation that reads no tensor with a place."""
        due = {event: None for use in op.reads for event in self._due.get(use.storage.index, ())}
        if op.kernel and not op.brings:
            due[number] = None
        for use in (*op.makes, *op.writes):
            self._due[use.storage.index] = due
            self._made[use.storage.index] = number
        if draft is not None and op.brings:
            self.take_in(draft, [use.storage for use in op.makes], number)

    def take_in(self, draft: Draft, storages: Iterable[Storage], number: int) -> None:
        """Let a node make those tensors that have no place yet."""
        on_host = draft.name in self._on_host  # on one device it runs there
        for storage in storages:
            due = self._due.pop(storage.index, None)
            if due is None:  # it has a place, or was among these before: an operation may read it twice
                continue
            draft.made[storage.index] = storage, number
            draft.taken_in.add(storage.index)
            draft.kernels += len(due.keys() - self._charged)
            self._charged |= due.keys()
            state = self._states[storage.index]
            state.writer, state.holder, state.made = draft.name, None if on_host else draft.name, number
