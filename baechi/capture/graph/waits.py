"""Where the host waits for values, nothing that the code calls later can start before they are there."""

from bisect import bisect_right
from collections.abc import Iterable

from baechi.capture.graph.drafted import Drafted


class HostWaits:
    """Waits of the host, in code order.

    Args:
        found: the nodes and edges.
    """

    def __init__(self, found: Drafted) -> None:
        self._found = found
        self._numbers: list[int] = []
        self._awaited: list[list[str]] = []

    def note(self, number: int, names: Iterable[str | None]) -> None:
        """Note a wait.

        Args:
            number: of its event.
            names: the nodes that made the values; others than those on devices are left out.
        """
        made = [name for name in dict.fromkeys(names) if name in self._found.drafts]
        for draft in [self._found.drafts[name] for name in made]:
            if draft.last == number - 1:  # what it made is still there
                draft.last = number
        awaited = [name for name in made if self._on_device(name)]
        if awaited:
            self._numbers.append(number)
            self._awaited.append(awaited)

    def order(self) -> None:
        """Let each node follow the last wait before it, unless something does that it depends on."""
        found = self._found
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
            for awaited in self._awaited[wait] if not since else ():
                if awaited != name:
                    found.after.setdefault((awaited, name), True)

    def _on_device(self, name: str) -> bool:
        return name in self._found.drafts and name not in self._found.on_host
