"""Stretches of a placement made even: each device gets as much work as the others, all stretches together.

    work of a device    |--- its stretch ---|-- its other one --|      a short stretch makes up for a long one

A cut makes no stretch longer than some time, so what one stretch lacks, another one of its device does not
get. Here ends of stretches move, one or two at a time, while the devices' work gets more even. Stretches of
a device stay about equally long, so that filling and draining stay short.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, combinations, groupby, product

from baechi.place.problem import ANYWHERE, Problem

_POWER = 8
"""Of a device's work: so high that the slowest device counts most."""

_EVEN = 0.1
"""How much it counts that stretches of a device are equally long."""

_FAR, _BOTH_FAR = (-3, -2, -1, 1, 2, 3), (-2, -1, 1, 2)
"""By how many groups an end moves; when two move."""

_MOST_ENDS = 32
"""Of more ends only one moves at a time."""

_ROUNDING = 1e-9


def balanced(problem: Problem, device_of: Sequence[int]) -> tuple[int, ...]:
    """A placement by group with the same stretches on the same devices in the same order, and more even work.

    Ends move from where they are, and from where all stretches are as long as their devices' speeds say: the
    more even one of both.
    """
    known, fresh = _Stretches(problem, device_of), _Stretches(problem, device_of)
    fresh.begin_evenly()
    for one in (known, fresh):
        while one.improve():
            pass
    best = min(known, fresh, key=lambda one: one.score)
    while best.improve_both():
        while best.improve():
            pass
    return best.device_of()


class _Stretches:
    """Stretches of groups that are pinned nowhere; what is pinned is work of its device."""

    def __init__(self, problem: Problem, device_of: Sequence[int]) -> None:
        self._device_of = list(device_of)
        self._loose = [group for group, pin in enumerate(problem.pins) if pin == ANYWHERE]
        members = problem.indexed.members
        of_groups = [[sum([row[layer] for layer in group]) for group in members] for row in problem.work_s]
        self._sums = [list(accumulate([row[g] for g in self._loose], initial=0.0)) for row in of_groups]
        self._work_s = [0.0] * len(problem.devices)
        for group, pin in enumerate(problem.pins):
            if pin != ANYWHERE:
                self._work_s[pin] += of_groups[pin][group]
        runs = [(device, len(list(run))) for device, run in groupby([device_of[g] for g in self._loose])]
        self._where = [device for device, _ in runs]
        self._shares = Counter(self._where)
        self._ends = list(accumulate([count for _, count in runs], initial=0))
        for part, device in enumerate(self._where):
            self._work_s[device] += self._part_s(part, {})
        self._mean_s = sum(self._work_s) / max(1, len(self._shares))

    @property
    def score(self) -> float:
        """The less, the more even."""
        parts = range(len(self._where))
        return self._of_devices(self._work_s) + sum([self._of_part(n, self._part_s(n, {})) for n in parts])

    def begin_evenly(self) -> None:
        """Put all ends where each stretch has its device's share, by its speed."""
        every = [self._sums[device][-1] for device in self._where]
        before_s = [self._part_s(part, {}) for part in range(len(every))]
        if not every or not all(every):
            return
        speeds = [1 / (whole_s * self._shares[n]) for n, whole_s in zip(self._where, every, strict=True)]
        work, parts = self._sums[self._where[0]], list(accumulate(speeds, initial=0.0))
        wanted = [bisect_left(work, work[-1] * part / parts[-1]) for part in parts[1:-1]]
        self._ends[1:-1] = [min(place, len(self._loose)) for place in wanted]
        for part, device in enumerate(self._where):
            self._work_s[device] += self._part_s(part, {}) - before_s[part]

    def improve(self) -> bool:
        """Make the moves of one end that help; whether there were any."""
        inner = range(1, len(self._where) if self._mean_s else 1)
        return any([self._move({end: far}) for end in inner for far in _FAR])

    def improve_both(self) -> bool:
        """The same of two ends at a time."""
        inner = range(1, len(self._where) if self._mean_s else 1)
        if len(inner) > _MOST_ENDS:
            return False
        both = [
            self._move(dict(zip(ends, far, strict=True)))
            for ends in combinations(inner, 2)
            for far in product(_BOTH_FAR, repeat=2)
        ]
        return any(both)

    def device_of(self) -> tuple[int, ...]:
        """By group, its device."""
        for device, first, last in zip(self._where, self._ends, self._ends[1:], strict=False):
            for place in range(first, last):
                self._device_of[self._loose[place]] = device
        return tuple(self._device_of)

    def _move(self, far: Mapping[int, int]) -> bool:
        """Move ends by some groups, if work gets more even."""
        parts = {part for end in far for part in (end - 1, end)}
        gain, work_s = 0.0, dict[int, float]()
        for part in parts:
            first, last = [self._ends[end] + far.get(end, 0) for end in (part, part + 1)]
            if not 0 <= first <= last <= len(self._loose):
                return False
            device, now_s, then_s = self._where[part], self._part_s(part, {}), self._part_s(part, far)
            work_s[device] = work_s.get(device, self._work_s[device]) + then_s - now_s
            gain += self._of_part(part, now_s) - self._of_part(part, then_s)
        gain += self._of_devices([self._work_s[device] for device in work_s])
        gain -= self._of_devices(work_s.values())
        if gain <= _ROUNDING:
            return False
        for end, count in far.items():
            self._ends[end] += count
        for device, own_s in work_s.items():
            self._work_s[device] = own_s
        return True

    def _part_s(self, part: int, far: Mapping[int, int]) -> float:
        """What a stretch takes, where ends have moved."""
        sums = self._sums[self._where[part]]
        first, last = [self._ends[end] + far.get(end, 0) for end in (part, part + 1)]
        return sums[last] - sums[first]

    def _of_devices(self, work_s: Iterable[float]) -> float:
        return sum([(own_s / self._mean_s) ** _POWER for own_s in work_s]) if self._mean_s else 0.0

    def _of_part(self, part: int, part_s: float) -> float:
        return _EVEN * (part_s * self._shares[self._where[part]] / self._mean_s) ** 2 if self._mean_s else 0.0
