"""Weights by the module that they belong to, and layers by their nearness to a module."""

from collections.abc import Iterator, Mapping

from baechi.capture.graph.draft import Draft
from baechi.capture.graph.groups import Groups
from baechi.capture.graph.storage_state import StorageState
from baechi.capture.watch.trace import Storage, Trace


def by_module(trace: Trace) -> dict[str, list[Storage]]:
    """The weights in and below each module."""
    below: dict[str, list[Storage]] = {}
    for name, storage in trace.weights.items():
        parts = name.split(".")
        for end in range(len(parts)):
            below.setdefault(".".join(parts[:end]), []).append(storage)
    return below


class LayersByPath:
    """Layers by the paths of their modules: which is nearest to a module?

    Args:
        drafts: nodes by name, in code order.
    """

    def __init__(self, drafts: Mapping[str, Draft]) -> None:
        self._first: dict[tuple[str, ...], str] = {}
        for name, draft in drafts.items():
            if draft.kind == "layer":
                self.add(name, draft.module)

    def add(self, name: str, module: str) -> None:
        """Know one more layer."""
        for path in _paths(module):
            self._first.setdefault(path, name)

    def nearest(self, module: str) -> str | None:
        """The layer whose module shares the longest path with a module."""
        return next((self._first[path] for path in _paths(module) if path in self._first), None)


def _paths(module: str) -> Iterator[tuple[str, ...]]:
    """The path of a module and of all that hold it, from the inside out."""
    parts = tuple(module.split("."))
    return (parts[:end] for end in range(len(parts), -1, -1))


def join_replaced(trace: Trace, states: Mapping[int, StorageState], groups: Groups) -> None:
    """Join the holders of buffers that forward assigns anew: they lie then where it made them."""
    for name, storage in trace.replaced.items():
        before, now = states[trace.weights[name].index].holder, states[storage.index].holder
        if before is not None and now is not None:
            groups.join(before, now)
