"""The search of placements: never worse than its starts, obeys pins, judges as often as it may."""

from collections.abc import Sequence

import pytest
from place.pipeline.test_cuts import chain

from baechi.place.pipeline import Verdict, searched
from baechi.place.problem import Problem
from baechi.records import Cluster, Device

TIMES = [1.0, 5.0, 1.0, 1.0, 3.0, 2.0, 1.0, 2.0]


def problem_of(pin: str | None = None) -> Problem:
    graph = chain(TIMES)
    if pin:
        graph.nodes["l1"]["pin"] = pin
    return Problem(graph, Cluster(tuple(Device(f"d{n}", memory_bytes=1) for n in range(2))))


def load(device_of: Sequence[int], at_most_s: float) -> Verdict:
    del at_most_s
    return Verdict(
        0, max(sum([t for t, d in zip(TIMES, device_of, strict=True) if d == n]) for n in range(2))
    )


def test_it_finds_the_optimum_of_a_small_one() -> None:
    """From everything on one device to equal loads, which no cut has."""
    best = searched(problem_of(), load, [("one", (0,) * 8)], 300)[0]
    assert best.verdict.step_s == 8.0
    assert best.name == "one, searched"


def test_starts_are_judged_first() -> None:
    """Without evaluations the best start comes back; of none, nothing."""
    starts = [("bad", (0,) * 8), ("good", (0, 0, 0, 1, 1, 1, 1, 1))]
    assert [found.name for found in searched(problem_of(), load, starts, 0)] == ["good", "bad"]
    assert searched(problem_of(), load, [], 10) == []


def test_of_each_start_the_best_is_kept() -> None:
    """So that two that are ordered differ in more than a layer."""
    found = searched(problem_of(), load, [("one", (0,) * 8), ("other", (1,) * 8)], 300)
    assert [one.name for one in found] == ["one, searched", "other"]


def test_starts_have_the_best_so_far_to_beat() -> None:
    """A start need not be judged exactly once it is known to be slower; what does not fit is no measure."""
    limits_s = []

    def judge(device_of: Sequence[int], at_most_s: float) -> Verdict:
        limits_s.append(at_most_s)
        return Verdict(int(not any(device_of)), load(device_of, at_most_s).step_s)

    starts = [("full", (0,) * 8), ("good", (0, 0, 0, 1, 1, 1, 1, 1)), ("bad", (1,) * 8), ("last", (0, 1) * 4)]
    assert searched(problem_of(), judge, starts, 0)[0].name == "good"
    assert limits_s == [float("inf"), float("inf"), 9.0, 9.0]


def test_too_full_is_worse_than_slow() -> None:
    """A slow placement that fits goes before a fast one that does not."""

    def judge(device_of: Sequence[int], at_most_s: float) -> Verdict:
        return Verdict(sum(device_of), load(device_of, at_most_s).step_s)

    assert searched(problem_of(), judge, [("half", (0, 1) * 4)], 300)[0].device_of == (0,) * 8


def test_a_slow_one_that_was_not_counted_fits_nowhere() -> None:
    """Where nothing fits yet, slower placements are counted, too, and none is taken to fit unseen."""

    def judge(device_of: Sequence[int], at_most_s: float) -> Verdict:
        step_s = load(device_of, at_most_s).step_s
        return Verdict(0 if step_s > at_most_s else 1 + sum(device_of), step_s)

    found = searched(problem_of(), judge, [("half", (0, 1) * 4)], 300)
    assert min([one.verdict.excess_bytes for one in found]) == 1


@pytest.mark.parametrize("pin", ["d0", "d1"])
def test_pins_hold(pin: str) -> None:
    """A pinned layer never moves, and no more placements are judged than asked for."""
    seen = []

    def judge(device_of: Sequence[int], at_most_s: float) -> Verdict:
        seen.append(device_of)
        return load(device_of, at_most_s)

    start = tuple([int(pin[1])] * 8)
    searched(problem_of(pin), judge, [("one", start)], 100)
    assert {device_of[1] for device_of in seen} == {int(pin[1])}
    assert len(seen) <= 101
