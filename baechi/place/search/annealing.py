"""Simulated annealing: random changes to a placement; slower ones are accepted less and less often.

move    a group, or a connected set of groups on its device, goes to a device of a neighbour in the graph
swap    two such sets change devices
turn    a layer gets another priority, so that its device may run it earlier or later

Every change is estimated; priorities start as bottom levels. When a step is the shortest so far, the
simulator checks its memory. The generator is seeded and effort is counted in estimates, so equal input
gives equal plans on every machine. After Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.
"""

import numpy as np

from baechi.place.bottom_level import bottom_levels
from baechi.place.evaluation import Check, Evaluated
from baechi.place.priority import order_by
from baechi.place.problem import Problem
from baechi.place.search.changes import TURNS, Groups, Portion, Progress, State, anneal
from baechi.place.search.compiler import Floats
from baechi.place.search.estimate import NEVER, Placement, Times, estimate
from baechi.place.search.room import Room, unseen_bytes
from baechi.place.search.tables import Tables

_SHORTER, _ROOMY = 0.99, 0.96
"""A step is simulated at once if it is below this fraction of the best; while all that were looked at fit."""

_EAGER = 40_000
"""After simulating this many layers, a search also needs `_SHORTER` against the last simulated estimate."""

_PORTION, _UNCOMPILED = 4096, 64
"""Estimates in one compiled call, between which Ctrl-C takes effect; in one by Python, which is slower."""


class Annealing:
    """A search from one placement.

    Args:
        problem: what is placed.
        tables: the tables of the problem.
        check: simulates a placement.
        start: the placement to begin with.
        seed: of the random generator.
    """

    def __init__(
        self,
        problem: Problem,
        tables: Tables,
        check: Check,
        start: Evaluated,
        seed: int = 0,
        *,
        in_turn: bool = False,
    ) -> None:
        self.best = start
        self._problem = problem
        self._tables = tables
        self._check = check
        self._chance = np.random.default_rng(seed)
        self._groups = Groups.of(problem)
        self._unseen = unseen_bytes(problem, start)
        self._looked_s, self._looks, self._fit = NEVER, 0, True
        self._turns = 0.0 if in_turn else TURNS if len(self._groups.free) else 1.0
        self._priority: Floats = np.array([] if in_turn else bottom_levels(problem, start.device_of))
        self._state, self._now = self._begin(0)

    @property
    def tried(self) -> int:
        """Estimates so far."""
        return self._now.tried

    def run(self, most: int, enough_s: float = 0.0) -> Evaluated:
        """Search."""
        if not self._tables.layers or len(self._problem.cluster) < 2:
            return self.best
        while self.tried < most and self.best.step_s > enough_s:
            before, wanted_s = self.tried, self._wanted_s()
            until = before + (_PORTION if anneal.is_at_hand else _UNCOMPILED)
            portion = Portion(wanted_s, min(most, until), most, self._turns)
            self._now = anneal(self._tables, self._groups, self._state, self._chance, self._now, portion)
            if self.tried == before:
                break
            new = self._now.shortest_s < self._looked_s
            if new and self._now.shortest_s <= wanted_s and not self._look():
                self._state, self._now = self._begin(self.tried)
        if self._now.shortest_s < min(self.best.step_s, self._looked_s):
            self._look()
        return self.best

    def _wanted_s(self) -> float:
        """The estimate that is simulated at once.

        Where estimates are far below simulated steps, this avoids a simulation for each shorter estimate.
        """
        shorter = _ROOMY if self._fit else _SHORTER
        if self._looks * self._tables.layers < _EAGER:
            return self.best.step_s * shorter
        return min(self.best.step_s, self._looked_s) * shorter

    def _begin(self, tried: int) -> tuple[State, Progress]:
        """A state that continues from the best placement."""
        room = Room.of(self._problem, self.best.device_of, self._unseen)
        place = np.argsort(self.best.order) if len(self._priority) else range(self._tables.layers)
        order = np.array(
            order_by(self._problem.followers, list(place)), np.int64
        )  # functional ops have no turn
        on, times = room.device_of[self._problem.indexed.group_of], Times.of(self._tables)
        now = Placement(on, self._priority.copy(), order)
        step_s = estimate(self._tables, times, now, NEVER)
        self._looked_s = NEVER
        state = State.of(self._tables, times, room, now)
        return state, Progress(step_s, self.best.step_s, tried, 0, 0.0)

    def _look(self) -> bool:
        """Simulate the state with the shortest estimate. Returns whether it fits."""
        state = self._state
        self._looked_s, self._looks = self._now.shortest_s, self._looks + 1
        found = self._check(state.shortest_of.tolist(), state.shortest.order.tolist())
        self._unseen = unseen_bytes(self._problem, found)
        if not found.fits(self._problem):
            self._fit = False
            return False
        if found.step_s < self.best.step_s:
            self.best, self._priority = found, state.shortest.priority.copy()
        return True
