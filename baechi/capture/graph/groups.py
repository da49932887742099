"""Which nodes must share a device, gathered pair by pair."""

ELSEWHERE = "elsewhere:"
"""Before the name of a node of another run's graph."""


class Groups:
    """Disjoint sets of node names; each knows its first member."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._rank: dict[str, int] = {}

    def add(self, name: str) -> None:
        """Add a node; the order of adding decides which is first in a group."""
        if name not in self._parent:
            self._parent[name] = name
            self._rank[name] = len(self._rank)

    def join(self, one: str, other: str) -> None:
        """Put two nodes, and all that share a device with them, on one device."""
        a, b = self.first(one), self.first(other)
        if a == b:
            return
        if self._rank[a] > self._rank[b]:
            a, b = b, a
        self._parent[b] = a

    def first(self, name: str) -> str:
        """The first member of a node's group."""
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def sizes(self) -> dict[str, int]:
        """How many members the group of each first member has."""
        sizes: dict[str, int] = {}
        for name in self._parent:
            first = self.first(name)
            sizes[first] = sizes.get(first, 0) + 1
        return sizes
