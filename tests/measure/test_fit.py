"""Costs are found from whole steps, and what these do not tell apart stays near the first guess."""

import pytest

from baechi.measure.fit import Step, fitted
from baechi.records import HostCosts
from baechi.records.device import HostWork

TRUE = HostCosts(view_s=2e-6, operator_s=7e-6, module_call_s=50e-6, task_s=300e-6)
GUESS = HostCosts(view_s=1e-6, operator_s=3e-6, module_call_s=30e-6, task_s=100e-6, chunk_s=1e-3)


def step(costs: HostCosts, **counts: int) -> Step:
    known: dict[HostWork, int] = counts  # type: ignore[assignment]
    return Step(Step(1.0, known).predicted_s(costs), known)


STEPS = [
    step(TRUE, view=100, operator=10),
    step(TRUE, operator=200),
    step(TRUE, module_call=40, operator=40),
    step(TRUE, task=8, view=50),
]


def test_steps_are_predicted() -> None:
    """Of steps that tell all costs apart, each is found within a few percent."""
    found = fitted(STEPS, GUESS)
    for one in STEPS:
        assert one.predicted_s(found) == pytest.approx(one.taken_s, rel=0.03)
    assert found.operator_s == pytest.approx(TRUE.operator_s, rel=0.05)


def test_a_slower_machine() -> None:
    """Work that no step does is as much slower as the middle step."""
    slow = [Step(3 * one.taken_s, one.counts) for one in STEPS]
    fast, slower = fitted(STEPS, GUESS), fitted(slow, GUESS)
    assert slower.chunk_s == pytest.approx(3 * fast.chunk_s)
    assert slower.task_s == pytest.approx(3 * fast.task_s, rel=0.01)


def test_nothing_is_negative() -> None:
    """Where a cost would have to be negative, it is 0."""
    steps = [Step(1e-3, {"view": 10}), Step(0.5e-3, {"view": 10, "operator": 10})]
    assert fitted(steps, GUESS).operator_s == 0
