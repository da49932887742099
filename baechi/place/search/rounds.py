"""Search in rounds: annealing from the best placements known, and from new partitions in bands.

round 0     bands    annealing from the two best of all
round 1     other bands     annealing from the best of all, and from the best that none began at
 ...        until effort is spent, or long rounds gain nothing
"""

from collections.abc import Sequence
from itertools import count, islice

import numpy as np

from baechi.place.bottom_level import bottom_levels
from baechi.place.evaluation import IN_TURN, Attempt, Check, Effort
from baechi.place.problem import Problem
from baechi.place.search.annealing import Annealing
from baechi.place.search.bands import partitions
from baechi.place.search.estimate import NEVER, Placement, Times, estimate
from baechi.place.search.room import unseen_bytes
from baechi.place.search.tables import Tables

ESTIMATES, LAYERS, TRAINED = 2400, 140, 100
"""Estimates per layer in a round of annealing, for up to this many layers; for up to the last number in
training, where each takes twice as long. With more layers there are fewer, so a round takes no longer."""

STARTS = 2
"""How many candidates a round improves: the best, and others that no search began with. A search from the
best one ends close to it, so the best one alone would narrow the search."""

MOVES, MOST_MOVES = 400, 400_000
"""Moves of a partition in bands: for each layer, and in all at most."""

CHECKS = 8
"""The most partitions in bands that are simulated to find some that fit."""

LONGEST, IDLE, GAIN = 32, 2, 0.999
"""With effort `"max"`: each round is twice as long as the last, up to this factor. The search stops when this
many of the longest rounds in a row leave more than this fraction of the step."""

ENOUGH = 1.0005
"""The search stops at a step within this factor of the lower bound."""

LITTLE, LESS = 0.1, 10
"""If at most this fraction of the step can be gained, rounds are this many times shorter."""

SEARCHED = " + search"

LAUNCH_ORDERS = 2
"""If the cluster charges the host there is a search for each: by priority, and in the code's order."""


class Rounds:
    """The search.

    Args:
        problem: what is placed.
        check: simulates a placement.
        known: the placements that are known.
        enough_s: a step that no plan can beat.
        in_turn: whether layers launch in the code's order; those of `known` do.
    """

    def __init__(
        self,
        problem: Problem,
        check: Check,
        known: Sequence[Attempt],
        enough_s: float,
        *,
        in_turn: bool = False,
    ) -> None:
        self.found: list[Attempt] = []
        self._begun: set[tuple[int, ...]] = set()
        self._problem = problem
        self._check = check
        self._known = known
        self._enough_s = enough_s * ENOUGH
        self._tables = Tables.of(problem)
        self._in_turn = in_turn
        layers, whole = max(1, len(problem.indexed)), TRAINED if problem.training else LAYERS
        estimates = ESTIMATES * min(layers, whole * whole // layers)
        self._most = max(STARTS, estimates // (1 if problem.cluster.host is None else LAUNCH_ORDERS))

    def run(self, effort: Effort) -> list[Attempt]:
        """Search."""
        idle, fewer = 0, 1 if effort == "max" else self._fewer()
        for number in count() if effort == "max" else range(effort):
            before_s = self._best().step_s
            if before_s <= self._enough_s:
                break
            length = min(2**number, LONGEST) if effort == "max" else 1
            self._round(number, length, fewer)
            idle = idle + 1 if length == LONGEST and self._best().step_s > before_s * GAIN else 0
            if idle == IDLE:
                break
        return self.found

    def _best(self) -> Attempt:
        return min([*self._known, *self.found], key=lambda one: one.step_s)

    def _fewer(self) -> int:
        return LESS if self._enough_s > self._best().step_s * (1 - LITTLE) else 1

    def _round(self, number: int, length: int, fewer: int) -> None:
        self.found += self._in_bands(number, fewer)
        by_step = sorted([*self._known, *self.found], key=lambda one: one.step_s, reverse=True)
        placements = {one.found.device_of: one for one in by_step}  # of equal ones the shortest step
        ranked = sorted(placements.values(), key=lambda one: one.step_s)
        others = [one for one in ranked[1:] if one.found.device_of not in self._begun]
        starts = [*ranked[:1], *others][:STARTS]
        self._begun |= {start.found.device_of for start in starts}
        for start in starts:
            search = Annealing(
                self._problem, self._tables, self._check, start.found, number, in_turn=self._in_turn
            )
            best = search.run(length * self._most // (fewer * len(starts)), self._enough_s)
            if best.step_s < start.step_s:
                self.found.append(Attempt(f"{start.name.removesuffix(SEARCHED)}{SEARCHED}", best))

    def _in_bands(self, seed: int, fewer: int) -> list[Attempt]:
        """The best partitions in bands that fit."""
        layers, group_of = len(self._problem.indexed), self._problem.indexed.group_of
        moves = min(MOST_MOVES, MOVES * layers) // fewer
        estimates, times = [], Times.of(self._tables)
        best = self._best().found
        unseen = unseen_bytes(self._problem, best)
        for number, device_of in enumerate(partitions(self._problem, best.device_of, moves, seed, unseen)):
            on, order = np.array(device_of, np.int64)[group_of], np.arange(layers)
            levels = np.array([] if self._in_turn else bottom_levels(self._problem, device_of))
            step_s = estimate(self._tables, times, Placement(on, levels, order), NEVER)
            estimates.append((step_s, number, device_of, order.tolist()))
        placed = (self._check(device_of, order) for _, _, device_of, order in sorted(estimates)[:CHECKS])
        fitting = (found for found in placed if found.fits(self._problem))
        first = islice(fitting, STARTS)
        return [
            Attempt(f"bands{f' {number}' * (number > 1)}{IN_TURN * self._in_turn}", found)
            for number, found in enumerate(first, 1)
        ]
