"""Tensors that are made of nothing (a mask, a number): they have no place until a node reads them.

The first node that does makes them, on its device, with the kernels that led to them. Others get them from
there.
"""

from collections.abc import Collection, Iterable, Mapping

from baechi.capture.graph.draft import Draft
from baechi.capture.graph.storage_state import StorageState
from baechi.capture.watch.trace import Op, Storage


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
        self._charged: set[int] = set()

    def note(self, op: Op, number: int) -> None:
        """Note an operation that reads no tensor with a place.

        Args:
            op: the operation.
            number: of its event.
        """
        due = {event: None for use in op.reads for event in self._due.get(use.storage.index, ())}
        if op.kernel:
            due[number] = None
        for use in (*op.makes, *op.writes):
            self._due[use.storage.index] = due

    def take_in(self, draft: Draft, storages: Iterable[Storage], number: int) -> None:
        """Let a node make those tensors that have no place yet.

        Args:
            draft: the node that reads them.
            storages: their memory.
            number: of the event at which it does.
        """
        if draft.name in self._on_host:
            return
        for storage in storages:
            due = self._due.pop(storage.index, None)
            if due is None:  # it has a place, or was among these before: an operation may read it twice
                continue
            draft.made[storage.index] = storage, number
            draft.taken_in.add(storage.index)
            draft.kernels += len(due.keys() - self._charged)
            self._charged |= due.keys()
            state = self._states[storage.index]
            state.writer, state.holder, state.made = draft.name, draft.name, number
