"""The order in which layers can launch: not all of them can wait for their turn (`run.reorder`).

    code    a   drop   b   c        plan   b   a   drop   c
    here    a   drop   b   c        `drop` draws: it launches where the code reaches it, and before it `a`

A layer that draws random numbers or writes memory launches when the code reaches it, after what it reads. One
that may write what others read launches after all that the code reached before it.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from baechi.cost.indexed import FROM_HOST, IndexedGraph


class LaunchRules:
    """Which layers launch after which, whatever the plan says.

    Args:
        indexed: the graph, in code order.
    """

    def __init__(self, indexed: IndexedGraph) -> None:
        parents = [
            [indexed.source[tensor] for tensor in indexed.reads[layer] if indexed.source[tensor] != FROM_HOST]
            + list(indexed.before[layer])
            for layer in range(len(indexed))
        ]
        self._followers: list[list[int]] = [[] for _ in range(len(indexed))]
        for layer, found in enumerate(parents):
            for parent in found:
                self._followers[parent].append(layer)
        gone: set[int] = set()  # launched by the last event
        event = -1  # a node of its own: after what has launched by then, before all that is reached later
        for layer, costs in enumerate(indexed.costs):
            if event >= 0:
                self._followers[event].append(layer)
            takes_all = costs.kind == "layer" and (bool(costs.writes) or costs.reaches)
            if not takes_all and not (costs.kind == "layer" and costs.as_reached):
                continue
            self._followers.append([])
            if event >= 0:
                self._followers[event].append(len(self._followers) - 1)
            event = len(self._followers) - 1
            due = list(range(layer + 1)) if takes_all else [layer]
            while due:
                one = due.pop()
                if one not in gone:
                    gone.add(one)
                    self._followers[one].append(event)
                    due += parents[one]
        self.bind = event >= 0
        """Whether some layer launches where the code reaches it, so that not all orders can be kept."""
        self._missing = [0] * len(self._followers)
        for found in self._followers:
            for follower in found:
                self._missing[follower] += 1

    def launchable(self, order: Sequence[int]) -> Sequence[int]:
        """The nearest order in which layers can launch.

        Args:
            order: all layers in topological order.
        """
        if not self.bind:
            return order
        place = [-1] * len(self._followers)  # events are no layers: they pass at once
        for number, layer in enumerate(order):
            place[layer] = number
        missing, found = list(self._missing), []
        ready = [(place[node], node) for node, count in enumerate(missing) if not count]
        heapify(ready)
        while ready:
            _, node = heappop(ready)
            if node < len(order):
                found.append(node)
            for follower in self._followers[node]:
                missing[follower] -= 1
                if not missing[follower]:
                    heappush(ready, (place[follower], follower))
        return found
