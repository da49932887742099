"""Functional ops that a plan places by themselves: which call of the model's code is which node of the plan.

    code    a(x)     b(x)     torch.cat([..])    u + v        v + w        c(..)
    site                      b, cat, 0          b, add, 0    b, add, 1

An op is known by the layer that the code called last, by its function, and by how many calls of that function
on devices came since then. Where code takes another path than when it was captured, a site may not be found,
or its op may lie elsewhere by rule than the plan thinks. Then the rule holds (`cost.anchor`).
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from baechi.records.plan import Plan


class Site(NamedTuple):
    """Where a functional op stands in the model's code.

    Args:
        after: the layer call before it; empty before the first one.
        function: its name.
        turn: how many calls of that function came since.
    """

    after: str
    function: str
    turn: int


class Move(NamedTuple):
    """A functional op that the plan places by itself.

    Args:
        usual: the device where it lies by rule, under the plan.
        there: the device where the plan places it.
    """

    usual: str
    there: str


class CallSites:
    """Where a step has come to in the model's code.

    Args:
        moves: see `moves_of`; not empty.
    """

    __slots__ = ("_after", "_calls", "_moves", "names")

    def __init__(self, moves: Mapping[Site, Move]) -> None:
        self.names = {site.function for site in moves}
        self._moves = moves
        self._after = ""
        self._calls: Counter[str] = Counter()

    def reached(self, call: str) -> None:
        """Note that the code reaches a layer."""
        self._after = call
        self._calls.clear()

    def there(self, function: str, usual: str) -> str | None:
        """Note that the code reaches a functional op. Returns its own place in the plan, if any."""
        move = self._moves.get(Site(self._after, function, self._calls[function]))
        self._calls[function] += 1
        return None if move is None or move.usual != usual else move.there


def moves_of(plan: Plan) -> dict[Site, Move]:
    """The functional ops that a plan places elsewhere than what they follow."""
    moves: dict[Site, Move] = {}
    after, calls = "", Counter[str]()
    for node, costs in plan.graph.placed_costs() if plan.apart else ():
        if costs.kind == "layer":
            after, calls = (after, calls) if costs.unread else (node, Counter())
        elif not costs.on_host:
            function = costs.type or ""
            if node in plan.apart:
                moves[Site(after, function, calls[function])] = Move(plan.apart[node], plan.device_of[node])
            calls[function] += 1
    return moves
