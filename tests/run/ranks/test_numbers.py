"""Over ranks a model trains as in one process: losses, norms and weights to the last bit."""

from typing import Any

import pytest
import torch
from run.ranks.jobs import pipeline_of, trained
from run.ranks.models import MADE
from run.ranks.processes import Ranks


def assert_as_alone(ranks: Ranks, name: str, text: str, evaluates: bool = False) -> list[dict[str, Any]]:
    """Three steps and an evaluation are those of one process; each weight is on one rank."""
    ranks.begin(trained, name, text, evaluates)
    alone = trained(name, text, evaluates)
    found = ranks.answers()
    for one in found:
        assert not isinstance(one, Exception), one
        assert (one["losses"], one["norms"], one["drawn"]) == (
            alone["losses"],
            alone["norms"],
            alone["drawn"],
        )
        assert one["weights"].keys() < alone["weights"].keys()
        for key, weight in one["weights"].items():
            assert torch.equal(weight, alone["weights"][key]), key
    assert sum(one["states"] for one in found) == alone["states"]
    assert {key for one in found for key in one["weights"]} == alone["weights"].keys()
    return found


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("name", ["counts", "planes", "tied", "towers"])
def test_two_ranks(two: Ranks, name: str) -> None:
    assert_as_alone(two, name, pipeline_of(name, 2, 2, "1f1b"), evaluates=name == "tied")


def test_recomputed_blocks(two: Ranks) -> None:
    """Each rank runs its own again; one process keeps all activations."""
    again = pipeline_of("tied", 2, 2, "1f1b", again="blocks")
    assert_as_alone(two, "tied", again)
    assert '"recompute"' in again


ORDERS = ["gpipe", "1f1b", "interleaved", "auto"]


@pytest.mark.full
@pytest.mark.parametrize(("number", "name"), list(enumerate(MADE)))
def test_two_ranks_in_any_order(two: Ranks, number: int, name: str) -> None:
    assert_as_alone(two, name, pipeline_of(name, 2, 3, ORDERS[number % 4], apart=number % 3 == 2))


@pytest.mark.parametrize(
    ("number", "name"),
    [
        pytest.param(number, name, marks=pytest.mark.full if number < 5 else pytest.mark.nightly)
        for number, name in enumerate(MADE)
    ],
)
def test_four_ranks_in_any_order(four: Ranks, number: int, name: str) -> None:
    assert_as_alone(four, name, pipeline_of(name, 4, 4, ORDERS[(number + 1) % 4], apart=number % 3 == 1))
