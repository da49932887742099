"""Change a placement that needs too much memory on some device, until it fits in the simulator.

Its excess is the sum over devices of the peak above memory, as a fraction of memory. A random change
moves a group of a device that is too full, swaps it with another, or lets a layer run earlier or later. A
change that does not raise the excess is kept; at first also one that raises it a little (Kirkpatrick,
Gelatt, Vecchi, Science 220, 1983). Peaks are estimated (`lifetimes`). The simulator checks when the
estimate has no excess left, and at regular intervals. Its difference from the estimate is then subtracted
from the memory limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random

from baechi.place.evaluation import Evaluated, Rehearsal, rehearsed
from baechi.place.priority import order_by
from baechi.place.problem import ANYWHERE, Problem
from baechi.place.tight.lifetimes import Lifetimes

_WARM, _COLD = 0.03, 0.001
"""The temperature: about this much more excess is accepted, at the beginning and at the end."""

_CHECKS = 20
"""The number of regular simulations in a repair, at equal intervals; more if an estimate has no excess."""


_Placement = tuple[tuple[int, ...], tuple[int, ...]]
"""By group its device; and by place in the order its layer, or by layer its place."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A placement that was simulated.

    Args:
        found: the placement; it fits if the excess is 0.
        keys: by layer, its priority, which gives the order.
        excess: the summed excess over memory, as fractions of memory.
    """

    found: Evaluated
    keys: tuple[float, ...]
    excess: float


class Judge:
    """Simulates placements, and remembers the one with the least excess.

    Args:
        problem: what is placed.
        rehearse: predicts a step.
    """

    def __init__(self, problem: Problem, rehearse: Rehearsal) -> None:
        self.problem = problem
        self._nearest: Attempt | None = None
        self._known: dict[_Placement, Evaluated] = {}
        self._rehearse = rehearse

    @property
    def asked(self) -> int:
        """How many placements were simulated, each once."""
        return len(self._known)

    @property
    def nearest(self) -> Attempt:
        """The placement with the least excess; at least one must have been simulated."""
        assert self._nearest is not None
        return self._nearest

    def __call__(self, device_of: Sequence[int], keys: Sequence[float]) -> Attempt:
        """Simulate a placement."""
        order = order_by(self.problem.followers, keys)
        known = self._known.get((tuple(device_of), tuple(order)))
        found = self._simulated(device_of, order) if known is None else known
        attempt = Attempt(found, tuple(keys), excess_of(found.peak_bytes, self.problem.memory_bytes))
        if self._nearest is None or attempt.excess < self._nearest.excess:
            self._nearest = attempt
        return attempt

    def _simulated(self, device_of: Sequence[int], order: Sequence[int]) -> Evaluated:
        found = rehearsed(self.problem, self._rehearse, device_of, order)
        self._known[found.device_of, found.order] = found
        return found


class Repair:
    """A placement that changes.

    Args:
        judge: simulates.
        estimate: of peaks.
        chance: decides what is tried.
    """

    def __init__(self, judge: Judge, estimate: Lifetimes, chance: Random) -> None:
        self._judge = judge
        self._problem = judge.problem
        self._estimate = estimate
        self._chance = chance
        self._known: dict[_Placement, list[int]] = {}

    def run(self, start: Attempt, most: int) -> Attempt:
        """Change a placement."""
        best, since = start, 0
        self._begin(start)
        for number in range(most):
            if not best.excess:
                break
            self._step(_WARM * (_COLD / _WARM) ** (number / most))
            if self._excess and number - since < most // _CHECKS:
                continue
            since = number
            attempt = self._judge(self._device_of, self._keys)
            self._calibrate(attempt)
            best = min(best, attempt, key=lambda one: one.excess)
        return best

    def _begin(self, start: Attempt) -> None:
        self._device_of, self._keys = list(start.found.device_of), list(start.keys)
        self._place = _places(start.found.order)
        self._peaks = self._estimated(self._device_of, self._place)
        self._calibrate(start)

    def _calibrate(self, attempt: Attempt) -> None:
        """Correct the limits by the estimate's error, which is about the same for similar placements."""
        off = [peak - guess for peak, guess in zip(attempt.found.peak_bytes, self._peaks, strict=True)]
        self._limits = [memory - more for memory, more in zip(self._problem.memory_bytes, off, strict=True)]
        self._excess = excess_of(self._peaks, self._limits)

    def _estimated(self, device_of: Sequence[int], place: Sequence[int]) -> list[int]:
        """The estimate. Most changes of the order of a small model lead to one that was estimated before."""
        key = tuple(device_of), tuple(place)
        if key not in self._known:
            where = [device_of[group] for group in self._problem.indexed.group_of]
            self._known[key] = self._estimate(where, place)
        return self._known[key]

    def _step(self, heat: float) -> None:
        """Try a random change."""
        over = [p - m for p, m in zip(self._peaks, self._limits, strict=True)]
        full = [device for device in self._problem.devices if over[device] > 0]
        device = self._chance.choice(full or self._problem.devices)
        here = [group for group, there in enumerate(self._device_of) if there == device]
        if not here:
            return
        group, turn = self._chance.choice(here), self._chance.random()
        device_of, keys, place = self._device_of, self._keys, self._place
        if turn < 0.25 or len(self._problem.devices) == 1:
            keys = self._turned(group)
            place = _places(order_by(self._problem.followers, keys))
        elif self._problem.pins[group] == ANYWHERE:
            device_of = self._moved(group, device, swap=turn < 0.6)
        peaks = self._estimated(device_of, place)
        excess = excess_of(peaks, self._limits)
        worse = excess - self._excess
        if worse <= 0 or self._chance.random() < exp(-worse / heat) / 2:
            self._device_of, self._keys, self._place = device_of, keys, place
            self._peaks, self._excess = peaks, excess

    def _turned(self, group: int) -> list[float]:
        """Priorities with one layer right before or behind another."""
        keys = list(self._keys)
        layer = self._chance.choice(self._problem.indexed.members[group])
        keys[layer] = keys[self._chance.randrange(len(keys))] + self._chance.choice((-0.5, 0.5))
        return keys

    def _moved(self, group: int, device: int, *, swap: bool) -> list[int]:
        """Devices with one group elsewhere, and perhaps another in its place."""
        device_of = list(self._device_of)
        near = self._problem.neighbours[group]
        there = device_of[self._chance.choice(near)] if near and self._chance.random() < 0.5 else device
        if there == device:
            there = self._chance.choice([other for other in self._problem.devices if other != device])
        others = [g for g, d in enumerate(device_of) if d == there and self._problem.pins[g] == ANYWHERE]
        if swap and others:
            device_of[self._chance.choice(others)] = device
        device_of[group] = there
        return device_of


def excess_of(peaks: Sequence[int], limits: Sequence[int]) -> float:
    """The sum of the peaks' excess over the limits, as fractions of the limits."""
    return sum([max(0, p - m) / max(1, m) for p, m in zip(peaks, limits, strict=True)])


def _places(order: Sequence[int]) -> list[int]:
    place = [0] * len(order)
    for index, layer in enumerate(order):
        place[layer] = index
    return place
