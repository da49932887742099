"""Which number of microbatches goes with which modules that run again: both are searched together.

          nothing again     some of a set      all of a set
    m=4   too full     ───▶  11 ms        ◀───  13 ms
    m=8   12 ms              12.4 ms            15 ms        not made: even with all memory it is slower

They do not come one after the other. More microbatches keep less each, and what they keep may be had by a
second run of the first blocks alone, where most are in flight. An alternative is a number and names. From
the fastest of those that fit, names are left out, added or exchanged and the number changes, in smaller and
smaller steps, as long as that is faster. Then alternatives are looked at by their bounds, which hold
whatever the memory: one whose bound is above the best step is not made, and ends the search.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import product

from baechi.cost.regions import outermost
from baechi.records.pipeline import Pipeline

_STARTS = 3
"""From so many of the best alternatives at first, each of another number, the search goes on."""

_BOUNDS = 4
"""So many times as many bounds are computed as alternatives are made."""

_EQUAL = 1e-9
"""Steps that differ by less than this part are equal; then the fewest modules run again."""


@dataclass(frozen=True)
class Alternative:
    """What is compared.

    Args:
        microbatches: how many.
        names: the modules that run again, none inside of another; sorted.
    """

    microbatches: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """An alternative that fits.

    Args:
        alternative: what it is.
        made: its placement and order.
    """

    alternative: Alternative
    made: Pipeline

    @property
    def step_s(self) -> float:
        """Its step."""
        return self.made.timeline.makespan_s


Made = Callable[[Alternative], Pipeline | None]
"""Places and orders an alternative; None if it does not fit."""

Least = Callable[[Alternative], float]
"""Seconds of its step where memory has no limit."""


class Alternatives:
    """A search over numbers of microbatches and modules that run again.

    Args:
        numbers: of microbatches.
        sets: modules that may run again, none of a set inside of another; the most worth first.
        made: places and orders one.
        least: says how fast one is at best.
        most: so many are made at most.
    """

    def __init__(
        self, numbers: Sequence[int], sets: Sequence[Sequence[str]], made: Made, least: Least, most: int
    ) -> None:
        self._numbers, self._sets = list(numbers), [list(names) for names in sets]
        self._make, self._least = made, least
        self._makes, self._bounds = most, _BOUNDS * most
        self._made: dict[Alternative, Pipeline | None] = {}
        self._least_s: dict[Alternative, float] = {}

    def search(self) -> list[Found]:
        """The alternatives that fit, the best first; empty if none was found."""
        plain = self._by_bound([_alternative(number, ()) for number in self._numbers])
        others = [_alternative(number, names) for names, number in product(self._sets, self._numbers)]
        for start in [*plain, *self._by_bound(others)]:
            self._step_s(start)
        for start in self._best_by_number()[:_STARTS]:
            self._climb(start)
        self._by_bounds(plain)
        return self._found()

    def _by_bound(self, some: Sequence[Alternative]) -> list[Alternative]:
        return sorted(dict.fromkeys(some), key=self._bound_s)

    def _by_bounds(self, starts: Sequence[Alternative]) -> None:
        """Make alternatives in the order of their bounds, as long as these are below the best step."""
        waiting, seen = list[tuple[float, int, Alternative]](), set[Alternative]()
        pool = list(dict.fromkeys([name for chosen in self._sets for name in chosen]))
        found = list(starts)
        while found or waiting:
            for one in found:
                if one not in seen:
                    seen.add(one)
                    heappush(waiting, (self._bound_s(one), len(seen), one))
            least_s, _, one = heappop(waiting)
            if least_s >= self._fastest_s() or self._makes <= 0 or self._bounds <= 0:
                return
            self._step_s(one)
            more = [outermost([*one.names, name]) for name in pool if name not in one.names]
            found = [_alternative(one.microbatches, list(names)) for names in more]

    def _found(self) -> list[Found]:
        pairs = [(one, self._made[one]) for one in self._ranked()]
        return [Found(one, made) for one, made in pairs if made is not None]

    def _ranked(self) -> list[Alternative]:
        fitting = [one for one, made in self._made.items() if made is not None]
        return sorted(fitting, key=lambda one: (self._step_s(one), len(one.names), one.microbatches))

    def _best_by_number(self) -> list[Alternative]:
        found: dict[int, Alternative] = {}
        for one in self._ranked():
            found.setdefault(one.microbatches, one)
        return list(found.values())

    def _climb(self, current: Alternative) -> None:
        """Go to a faster neighbour while there is one; by many modules at once, then by fewer."""
        size = max([len(names) for names in self._sets], default=1)
        while size:
            better = next((one for one in self._neighbours(current, size) if self._beats(one, current)), None)
            if better is None:
                size //= 2
            else:
                current = better

    def _beats(self, one: Alternative, current: Alternative) -> bool:
        step_s, found_s = self._step_s(current), self._step_s(one)
        fewer = len(one.names) < len(current.names)
        return found_s < step_s * (1 - _EQUAL) or (fewer and found_s <= step_s * (1 + _EQUAL))

    def _neighbours(self, current: Alternative, size: int) -> Iterator[Alternative]:
        """Alternatives that differ by some modules, by the number, or by both; no more if none is made."""
        place = self._numbers.index(current.microbatches)
        numbers = self._numbers[max(0, place - 1) : place + 2]
        for names in self._near(list(current.names), size):
            if self._makes <= 0:  # what was made is ranked anyway, and there may be a million
                return
            for number in sorted(numbers, key=lambda one: (one != current.microbatches, one)):
                found = _alternative(number, names)
                if found != current:
                    yield found

    def _near(self, names: list[str], size: int) -> Iterator[list[str]]:
        yield names
        dropped = [[name for name in names if name not in part] for part in _parts(self._sorted(names), size)]
        yield from dropped
        for chosen in self._sets:
            missing = _parts([name for name in chosen if name not in names], size)
            for kept in [names, *dropped]:
                for part in missing:
                    yield list(outermost([*kept, *part]))

    def _sorted(self, names: Sequence[str]) -> list[str]:
        """Names in the order of the sets: the most worth first."""
        place = {name: number for chosen in reversed(self._sets) for number, name in enumerate(chosen)}
        return sorted(names, key=lambda name: place[name])

    def _fastest_s(self) -> float:
        return min(map(_step_of, self._made.values()), default=float("inf"))

    def _bound_s(self, one: Alternative) -> float:
        """Its step at best; 0 when no more bounds are computed."""
        if one not in self._least_s:
            if self._bounds <= 0:
                return 0.0
            self._bounds -= 1
            self._least_s[one] = self._least(one)
        return self._least_s[one]

    def _step_s(self, one: Alternative) -> float:
        """Its step; without limit if it does not fit, if its bound says enough, or if no more are made."""
        if one not in self._made:
            if self._makes <= 0 or self._bound_s(one) > self._fastest_s() * (1 + _EQUAL):
                return float("inf")
            self._makes -= 1
            self._made[one] = self._make(one)
        return _step_of(self._made[one])


def _step_of(made: Pipeline | None) -> float:
    return float("inf") if made is None else made.timeline.makespan_s


def _alternative(number: int, names: Sequence[str]) -> Alternative:
    return Alternative(number, tuple(sorted(names)))


def _parts(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[first : first + size] for first in range(0, len(names), size)]
