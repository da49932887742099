"""Where the host waits for values, nothing that the code calls later can start before they are there."""

from bisect import bisect_right
from collections.abc import Mapping

from baechi.capture.graph.draft_graph import Drafted
from baechi.capture.graph.storage_state import StorageState
from baechi.capture.watch.trace import HostWait, Origin


class HostWaits:
    """Waits of the host, in code order.

    Args:
        found: the nodes and edges.
    """

    def __init__(self, found: Drafted) -> None:
        self._found = found
        self._numbers: list[int] = []
        self._awaited: list[list[str]] = []

    def note(self, number: int, wait: HostWait, states: Mapping[int, StorageState]) -> None:
        """Note a wait for values that nodes on devices made. These launch what brings the values, too."""
        indexes = [use.storage.index for use in wait.uses if use.storage.origin is not Origin.NOTHING]
        names = dict.fromkeys([states[index].writer for index in indexes])
        made = [name for name in names if name in self._found.drafts]
        for draft in [self._found.drafts[name] for name in made]:
            if draft.last == number - 1:  # what it made is still there
                draft.last = number
            draft.kernels += wait.kernels
            draft.waits.append(draft.kernels)
        awaited = [name for name in made if self._on_device(name)]
        if awaited:
            self._numbers.append(number)
            self._awaited.append(awaited)

    def order(self) -> None:
        """Let each node follow the waits before it, unless something does that it depends on."""
        found, waits = self._found, self._waits()
        self._say_where()
        before: dict[str, list[str]] = {}
        for source, target in (*found.edges, *found.after):
            before.setdefault(target, []).append(source)
        for name, draft in found.drafts.items():
            wait = bisect_right(self._numbers, draft.first) - 1
            if wait < 0 or not self._on_device(name):
                continue
            since = [
                source
                for source in before.get(name, ())
                if self._on_device(source) and found.drafts[source].first > self._numbers[wait]
            ]
            for awaited in waits[wait] if not since else ():
                if awaited != name:
                    found.after.setdefault((awaited, name), True)

    def _waits(self) -> list[list[str]]:
        """By wait, what has to be there after it: also what earlier ones waited for.

        A node that was called after the wait before follows that one; the code may look at older ones again.
        """
        found: list[list[str]] = []
        for place, awaited in enumerate(self._awaited):
            follows = any(self._found.drafts[name].first > self._numbers[place - 1] for name in awaited)
            earlier = [] if not place or follows else found[-1]
            found.append(list(dict.fromkeys([*earlier, *awaited])))
        return found

    def _say_where(self) -> None:
        """Note with each awaited node which node comes next in the code."""
        firsts = {draft.first: draft for draft in reversed(self._found.drafts.values())}
        following = sorted(firsts)
        for number, names in zip(self._numbers, self._awaited, strict=True):
            place = bisect_right(following, number)
            if place < len(following):
                for name in names:
                    draft = self._found.drafts[name]
                    draft.awaited_before = draft.awaited_before or firsts[following[place]].name

    def _on_device(self, name: str) -> bool:
        return name in self._found.drafts and name not in self._found.on_host
