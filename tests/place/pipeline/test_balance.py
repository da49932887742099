"""Stretches of a placement get even: the same devices in the same order, no device slower than before."""

from itertools import groupby
from random import Random

import pytest
from place.pipeline.test_cuts import chain

from baechi.place.pipeline import balanced, cuts
from baechi.place.problem import Problem
from baechi.records import Cluster, Device


def problem_of(times: list[float], speeds: list[float], pin: str | None = None) -> Problem:
    graph = chain(times)
    if pin:
        graph.nodes["l1"]["pin"] = pin
    devices = [Device(f"d{n}", memory_bytes=1, speed=speed) for n, speed in enumerate(speeds)]
    return Problem(graph, Cluster(tuple(devices)))


def slowest(problem: Problem, device_of: tuple[int, ...]) -> float:
    work_s = [0.0 for _ in problem.devices]
    for group, device in enumerate(device_of):
        work_s[device] += sum([problem.work_s[device][layer] for layer in problem.indexed.members[group]])
    return max(work_s)


def test_a_short_stretch_makes_up_for_a_long_one() -> None:
    """A cut in four stretches of at most 6 s leaves 12 and 9; two of 4 and 6, and 6 and 5 are possible."""
    problem = problem_of([2, 2, 2, 1, 1, 1, 3, 3, 1, 1, 2, 2], [1.0, 1.0])
    start = (0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1)
    made = balanced(problem, start)
    assert slowest(problem, start) == pytest.approx(36)
    assert slowest(problem, made) == pytest.approx(33)  # 63 s of work, in units of 3
    assert [device for device, _ in groupby(made)] == [0, 1, 0, 1]


@pytest.mark.parametrize("seed", range(8))
def test_the_slowest_device_is_faster_than_in_the_cut(seed: int) -> None:
    """Of random chains over devices of unequal speed, in several stretches each: by 3 %."""
    chance = Random(seed)
    times = [chance.randint(1, 9) / 4 for _ in range(24)]
    problem = problem_of(times, [chance.choice([1.0, 2.0]) for _ in range(3)])
    several = [device_of for name, device_of in cuts(problem, 8) if "virtual" in name]
    made = [balanced(problem, device_of) for device_of in several]
    for before, after in zip(several, made, strict=True):
        assert set(after) <= set(before)
        assert slowest(problem, after) <= slowest(problem, before) * 1.05  # evener in all, if not in this
    sums = [sum([slowest(problem, one) for one in found]) for found in (several, made)]
    assert sums[1] < 0.97 * sums[0]


def test_pins_hold_and_their_work_counts() -> None:
    """The second layer stays on the second device, which gets less beside it."""
    problem = problem_of([1.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0], pin="d1")
    made = balanced(problem, (0, 1, 0, 0, 1, 1, 1, 1))
    assert made[1] == 1
    assert slowest(problem, made) == pytest.approx(18)


@pytest.mark.parametrize("device_of", [(), (0,), (0, 0, 0)])
def test_nothing_to_move(device_of: tuple[int, ...]) -> None:
    """No layers, or one stretch: as it was."""
    assert balanced(problem_of([1.0] * len(device_of), [1.0]), device_of) == device_of
