"""The order in which layers can launch: not all of them can wait for their turn (`run.reorder`).

    code    a   drop   b   c        plan   b   a   drop   c
    here    a   drop   b   c        `drop` draws: it launches where the code reaches it, and before it `a`

A layer that draws random numbers or writes memory launches when the code reaches it, after what it reads. One
that may write what others read launches after all that the code reached before it.
"""

from collections.abc import Sequence

from baechi.place.priority import order_by
from baechi.records.layer_costs import LayerCosts


class LaunchRules:
    """Which layers launch after which, whatever the plan says.

    Args:
        layers: by layer, in code order, its attributes.
        followers: by layer, those that depend on it.
    """

    def __init__(self, layers: Sequence[LayerCosts], followers: Sequence[Sequence[int]]) -> None:
        parents: list[list[int]] = [[] for _ in layers]
        for layer, found in enumerate(followers):
            for follower in found:
                parents[follower].append(layer)
        self._followers = [list(found) for found in followers]
        gone: set[int] = set()  # launched by the last event
        event = -1  # a node of its own: after what has launched by then, before all that is reached later
        for layer, costs in enumerate(layers):
            if event >= 0:
                self._followers[event].append(layer)
            takes_all = bool(costs.writes) or costs.reaches
            if costs.kind != "layer" or not (takes_all or costs.as_reached):
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

    def launchable(self, order: Sequence[int]) -> Sequence[int]:
        """The nearest order in which layers can launch."""
        if not self.bind:
            return order
        place = [-1.0] * len(self._followers)  # events are no layers: they pass at once
        for number, layer in enumerate(order):
            place[layer] = number
        return [node for node in order_by(self._followers, place) if node < len(order)]
