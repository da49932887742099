"""Local search over placements for a pipeline: ends of stretches move, stretches change their device."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import NamedTuple

from baechi.place.problem import ANYWHERE, Problem

_SLACK = 2e-3
"""At first, a placement may be slower than the one before by this part; at the end not at all."""

_SEARCHED = ", searched"

_MOST_GROUPS = 6
"""A stretch that changes its device has at most so many groups."""


class Verdict(NamedTuple):
    """How good a placement is; the less, the better.

    Args:
        excess_bytes: by how much devices are too full, in all.
        step_s: the predicted step.
    """

    excess_bytes: int
    step_s: float


Judge = Callable[[Sequence[int], float], Verdict]
"""Judges a placement by group. It may stop when the step is longer than some seconds, and say so."""


@dataclass(frozen=True)
class Found:
    """A placement with what was said about it.

    Args:
        name: where it came from.
        device_of: by group, its device.
        verdict: how good it is.
    """

    name: str
    device_of: tuple[int, ...]
    verdict: Verdict


def searched(
    problem: Problem,
    judge: Judge,
    starts: Iterable[tuple[str, tuple[int, ...]]],
    evaluations: int,
    *,
    keep: int | None = 2,
) -> list[Found]:
    """Search from the best of some placements; of each start the best is kept."""
    found, shortest_s = list[Found](), inf
    for name, start in starts:
        found.append(Found(name, start, judge(start, shortest_s)))
        if not found[-1].verdict.excess_bytes:
            shortest_s = min(shortest_s, found[-1].verdict.step_s)
    found.sort(key=lambda one: one.verdict)
    if not found:
        return []
    chance, current, seen = Random(0), found[0], {one.device_of for one in found}
    for number in range(evaluations if len(problem.devices) > 1 else 0):
        slack = 1 + _SLACK * (1 - number / evaluations)
        changed = _changed(problem, current.device_of, chance)
        if changed in seen:
            continue
        seen.add(changed)
        excess_bytes, limit_s = current.verdict.excess_bytes, current.verdict.step_s * slack
        # a slower one is not asked for its bytes; where none fits yet, it may be the first
        verdict = judge(changed, inf if excess_bytes else limit_s)
        if verdict < (excess_bytes, limit_s):
            current = Found(_start_of(current) + _SEARCHED, changed, verdict)
            found.append(current)
    best: dict[str, Found] = {}
    for one in sorted(found, key=lambda one: one.verdict):
        best.setdefault(_start_of(one), one)
    return list(best.values())[:keep]


def _start_of(one: Found) -> str:
    return one.name.removesuffix(_SEARCHED)


def _changed(problem: Problem, device_of: Sequence[int], chance: Random) -> tuple[int, ...]:
    groups, changed = len(device_of), list(device_of)
    ends = [group for group in range(1, groups) if device_of[group] != device_of[group - 1]]
    if ends and chance.random() < 0.75:  # an end of a stretch moves
        end = chance.choice(ends)
        count = chance.choice((1, 1, 2, 3, _MOST_GROUPS))
        if chance.random() < 0.5:
            moved, device = range(end, min(groups, end + count)), device_of[end - 1]
        else:
            moved, device = range(max(0, end - count), end), device_of[end]
    else:
        first = chance.randrange(groups)
        moved = range(first, min(groups, first + chance.randint(1, _MOST_GROUPS)))
        device = chance.choice(list(problem.devices))
    for group in moved:
        if problem.pins[group] == ANYWHERE:
            changed[group] = device
    return tuple(changed)
