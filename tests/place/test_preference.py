"""Of plans with nearly equal steps: room to spare, then few cuts, then whole blocks."""

from dataclasses import replace
from itertools import pairwise

import pytest
from place.graphs import cluster_of, graph_of

from baechi.place.evaluation import Attempt, Evaluated
from baechi.place.preference import in_whole_blocks, preferred
from baechi.place.problem import Problem
from baechi.records import Link
from baechi.verbs.plans import place

NAMES = ("layers.0.a", "layers.0.b", "layers.1.a", "layers.1.b")


def problem_of(**more: object) -> Problem:
    """Two blocks of two layers in a row, on two devices of 100 bytes."""
    nodes = {name: {"forward_s": 1.0, "param_bytes": 10, **more} for name in NAMES}
    edges = [(one, other, 1) for one, other in pairwise(NAMES)]
    return Problem(graph_of(nodes, edges), cluster_of(100, 100))


def attempt(name: str, device_of: str, step_s: float = 10.0, peaks: tuple[int, int] = (50, 50)) -> Attempt:
    return Attempt(name, Evaluated(tuple(map(int, device_of)), (0, 1, 2, 3), step_s, peaks))


def test_headroom_first() -> None:
    """A fuller device is taken only for more than a hundredth of the step."""
    full, roomy = attempt("full", "0011", 10.0, (95, 20)), attempt("roomy", "0101", 10.09, (60, 60))
    assert preferred(problem_of(), [full, roomy]) is roomy
    shorter = attempt("full", "0011", 9.9, (95, 20))
    assert preferred(problem_of(), [shorter, roomy]) is shorter


def test_enough_headroom() -> None:
    """With a fifth to spare, more is no better: fewer cuts count, then the shorter step, then the first."""
    cut, whole = attempt("cut", "0101", 10.0, (30, 30)), attempt("whole", "0011", 10.05, (80, 80))
    assert preferred(problem_of(), [cut, whole]) is whole
    same = attempt("same", "0011", 10.05, (80, 80))
    assert preferred(problem_of(), [whole, same]) is whole
    shorter = replace(same, found=replace(same.found, step_s=10.01))
    assert preferred(problem_of(), [whole, shorter]) is shorter


def test_blocks_last() -> None:
    """One cut each: the cut between blocks is the better one."""
    inside, between = attempt("inside", "0001", 10.0), attempt("between", "0011", 10.05)
    assert preferred(problem_of(), [inside, between]) is between


def test_in_whole_blocks() -> None:
    """A cut inside a block moves to its edge, if the plan then fits and takes no longer."""
    problem = problem_of()

    def check(device_of: object, order: object) -> Evaluated:
        return Evaluated(device_of, order, 10.0, (50, 50))  # type: ignore[arg-type]

    (found,) = in_whole_blocks(problem, check, [attempt("chain", "0001"), attempt("even", "0011")])
    assert (found.name, found.found.device_of) == ("chain + whole blocks", (0, 0, 0, 0))
    too_full = replace(found.found, peak_bytes=(101, 0))
    assert in_whole_blocks(problem, lambda device_of, order: too_full, [attempt("chain", "0001")]) == []
    slower = replace(found.found, step_s=10.2)
    assert in_whole_blocks(problem, lambda device_of, order: slower, [attempt("chain", "0001")]) == []


@pytest.mark.parametrize("blocks", [5, 6])
def test_a_chain_of_blocks(blocks: int) -> None:
    """A chain that needs two devices or three of four: none is nearly full, and no block is cut."""
    names = [f"layers.{block}.{part}" for block in range(blocks) for part in "abc"]
    nodes = {name: {"forward_s": 1.0, "param_bytes": 10, "output_bytes": 1} for name in names}
    edges = [(one, other, 1) for one, other in pairwise(names)]
    plan = place(graph_of(nodes, edges), cluster_of(*[100] * 4, link=Link(1e-4, 1e4)))
    assert max(plan.timeline.peak_bytes.values()) <= 80
    for block in range(blocks):
        assert len({plan.device_of[f"layers.{block}.{part}"] for part in "abc"}) == 1
