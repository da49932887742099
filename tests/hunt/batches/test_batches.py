"""Random losses and outputs have the gradients of the whole batch in microbatches, or say why they do not.

The suite runs the judge on twenty and three pipelines, `PYTHONPATH=.:tests python -m hunt.batches` more.
"""

import pytest

from .draw import draw
from .judge import REFUSED, is_right_by_a_rule, outcome, without_lanes


def assert_right(seed: int, found: str) -> None:
    """It is not wrong in silence, and nothing right was refused."""
    case, kind = draw(seed), found.partition(":")[0]
    assert kind in ("equal", "drawn", "said", REFUSED), f"{case}: {found}"
    if kind == REFUSED and case.is_loss and not case.couples and not case.draws and case.init != "zero gate":
        assert not is_right_by_a_rule(case), f"{case}: {found}"


@pytest.mark.parametrize("start", [0, 10])
def test_the_judge(start: int) -> None:
    """Parts in a loop take the place of a pipeline."""
    for seed in range(start, start + 10):
        assert_right(seed, without_lanes(draw(seed)))


@pytest.mark.parametrize("seed", range(3))
def test_pipelines(seed: int) -> None:
    """The whole way."""
    assert_right(seed, outcome(draw(seed)))


@pytest.mark.full
@pytest.mark.parametrize("start", range(100, 300, 50))
def test_more_of_the_judge(start: int) -> None:
    """The same, three steps of each."""
    for seed in range(start, start + 50):
        assert_right(seed, without_lanes(draw(seed), 3))
