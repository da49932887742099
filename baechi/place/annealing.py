"""Simulated annealing: changes to a placement, the slower ones ever more seldom kept.

move    a group, or a connected handful of its device, goes where a neighbour in the graph lies
swap    two such handfuls change places
turn    a layer runs earlier or later, if its device has the choice

Every change is estimated, with bottom levels as priorities; the simulator has a say on
memory whenever a step is the shortest so far. Chance is seeded, effort is counted in estimates: the same
input gives the same plan everywhere. After Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.
"""

from collections.abc import Callable, Sequence
from math import log
from random import Random

from baechi.place.bottom_level import bottom_levels
from baechi.place.estimate import Estimate
from baechi.place.found import Found
from baechi.place.room import Room
from baechi.place.task import ANYWHERE, Task

Check = Callable[[Sequence[int], Sequence[int]], Found | None]
"""Simulates a placement, by group, with an order; None if a device has too little memory."""

_HOTTEST, _COLDEST = 3e-3, 3e-5
"""The temperature at the beginning and at the end, in steps."""

_TURNS, _SWAPS, _HANDFULS, _NEAR = 0.15, 0.2, 0.5, 0.7
"""How often a change is a turn; a move is a swap; takes several groups; goes to a neighbour."""

_LARGEST = 8
"""Groups of a handful at most."""

_LEVELS = 20
"""Bottom levels are worked out anew after so many changes."""

_CHECKED = 0.998
"""A step shorter by that much is simulated at once."""

_IDLE = 20
"""A part of the draws that may be impossible before the search gives up."""


class Annealing:
    """A search from one placement.

    Args:
        task: what is placed.
        estimate: estimates of the task.
        check: simulates a placement.
        start: where to begin.
        seed: of what is tried.
    """

    def __init__(self, task: Task, estimate: Estimate, check: Check, start: Found, seed: int = 0) -> None:
        self.best = start
        self.tried = 0
        self._changes = 0
        self._task = task
        self._estimate = estimate
        self._check = check
        self._chance = Random(seed)
        self._near = task.neighbours
        self._free = [group for group, pin in enumerate(task.pins) if pin == ANYWHERE]
        self._turns_s = [0.0] * len(task.indexed)
        self._begin(start)

    def run(self, most: int, enough_s: float = 0.0) -> Found:
        """Search.

        Args:
            most: estimates at most.
            enough_s: stop at a step as short as this: no step can be shorter.

        Returns:
            The best placement.
        """
        if not self._on or len(self._task.cluster) < 2:
            return self.best
        turns = _TURNS if self._free else 1.0
        for _ in range(_IDLE * most):
            if self.tried >= most or self.best.step_s <= enough_s:
                break
            heat_s = self._step_s * _HOTTEST * (_COLDEST / _HOTTEST) ** (self.tried / most)
            limit_s = self._step_s - heat_s * log(1.0 - self._chance.random())
            change = self._turn if self._chance.random() < turns else self._move
            if change(limit_s):
                self._changed()
        self._look(*self._shortest)
        return self.best

    def _begin(self, found: Found) -> None:
        """Go on from a placement."""
        self._room = Room(self._task, found.device_of)
        self._on = [found.device_of[group] for group in self._task.indexed.group_of]
        self._level()
        self._shortest_s, self._shortest = found.step_s, (found.device_of, found.order)

    def _changed(self) -> None:
        """Take stock after a change that stays."""
        self._changes += 1
        if self._changes % _LEVELS == 0:
            self._level()
        if self._step_s >= self._shortest_s * (1 - 1e-9):
            return
        self._shortest_s = self._step_s
        self._shortest = (tuple(self._room.device_of), tuple(self._order))
        if self._step_s < self.best.step_s * _CHECKED and not self._look(*self._shortest):
            self._begin(self.best)

    def _look(self, device_of: Sequence[int], order: Sequence[int]) -> bool:
        """Simulate a placement; whether it fits."""
        found = self._check(device_of, order)
        if found is not None and found.step_s < self.best.step_s:
            self.best = found
        return found is not None

    def _level(self) -> None:
        """Work priorities out anew."""
        levels = bottom_levels(self._task, self._room.device_of)
        self._priority = [level + turn for level, turn in zip(levels, self._turns_s, strict=True)]
        self._step_s, self._order = self._estimate(self._on, self._priority)

    def _turn(self, limit_s: float) -> bool:
        layer = int(self._chance.random() * len(self._on))
        turn_s = (self._chance.random() - 0.5) * self._step_s / 5
        self._priority[layer] += turn_s
        self._turns_s[layer] += turn_s
        if self._keeps(limit_s):
            return True
        self._priority[layer] -= turn_s
        self._turns_s[layer] -= turn_s
        return False

    def _move(self, limit_s: float) -> bool:
        device_of, chance = self._room.device_of, self._chance
        first = self._free[int(chance.random() * len(self._free))]
        here, near = device_of[first], self._near[first]
        if near and chance.random() < _NEAR:
            there = device_of[near[int(chance.random() * len(near))]]
        else:
            there = int(chance.random() * len(self._task.cluster))
        if there == here:
            return False
        most = int((_LARGEST + 1) ** chance.random()) if chance.random() < _HANDFULS else 1
        leave, come = self._handful(first, most), []
        if chance.random() < _SWAPS:
            other = self._free[int(chance.random() * len(self._free))]
            if device_of[other] != there:
                return False
            come = self._handful(other, len(leave))
        if not (self._room.takes(there, leave, come) and self._room.takes(here, come, leave)):
            return False
        self._put(leave, there)
        self._put(come, here)
        if not self._keeps(limit_s):
            self._put(leave, here)
            self._put(come, there)
            return False
        for group in leave:
            self._room.move(group, there)
        for group in come:
            self._room.move(group, here)
        return True

    def _put(self, groups: Sequence[int], device: int) -> None:
        for group in groups:
            for layer in self._task.indexed.members[group]:
                self._on[layer] = device

    def _handful(self, first: int, most: int) -> list[int]:
        """A group and some that hang together with it on its device."""
        device_of, here = self._room.device_of, self._room.device_of[first]
        handful, edge = [first], list(self._near[first])
        while edge and len(handful) < most:
            place = int(self._chance.random() * len(edge))
            edge[place], edge[-1] = edge[-1], edge[place]
            group = edge.pop()
            if device_of[group] == here and group not in handful and self._task.pins[group] == ANYWHERE:
                handful.append(group)
                edge += self._near[group]
        return handful

    def _keeps(self, limit_s: float) -> bool:
        """Estimate what has been changed; whether it stays."""
        self.tried += 1
        step_s, order = self._estimate(self._on, self._priority, limit_s)
        if step_s > limit_s:
            return False
        self._step_s, self._order = step_s, order
        return True
