"""What differs between ranks is named before anything is sent; an error of one ends all of them."""

import pytest
from run.ranks.jobs import different, elsewhere, failing, pipeline_of
from run.ranks.processes import Ranks, ranks

import baechi

DIFFERENT = {
    "seed": "rank 1 has another random seed than rank 0: 5 (on rank 0: 0)",
    "weight": "rank 1 has another model than rank 0: head.weight is float64 of shape (12, 16) (on rank 0: "
    "head.weight is float64 of shape (11, 16))",
    "class": "rank 1 has another model than rank 0: left.0.norm is a Identity",
    "batch": "rank 1 has another batch than rank 0: tensor 0: float64 of shape (6, 4, 8)",
    "argument": "rank 1 has another argument of distribute than rank 0: loss_weights='sum'",
    "rows": "rank 1 has inputs of other shapes: give every rank the same batch: there",
    "labels": "rank 1 has integer inputs of other values",
}


@pytest.fixture(scope="module")
def towers() -> str:
    return pipeline_of("towers", 2, 2, "1f1b")


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_difference_is_named(two: Ranks, towers: str, what: str) -> None:
    """On all ranks, which are still together afterwards."""
    for error in two(different, what, towers):
        assert isinstance(error, baechi.RankError), error
        assert str(error).startswith(DIFFERENT[what]), error


def test_weights_of_others_have_no_values(two: Ranks) -> None:
    for found in two(elsewhere, pipeline_of("tied", 2, 2, "1f1b")):
        for name, said in found.items():
            assert " on rank" in said or "over ranks" in said, (name, said)
            assert "has no values" in said or "none has all of its weights" in said, (name, said)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.full)])
def test_an_error_of_one_rank_ends_all(towers: str, rank: int) -> None:
    """The others raise it, with the rank, long before the time limit."""
    with ranks(2, limit_s=500) as both:
        found = both(failing, towers, rank)
    assert isinstance(found[rank], ValueError)
    other = found[1 - rank]
    assert isinstance(other, baechi.RankError)
    assert f"ended by rank {rank}: ValueError: no such token" in str(other)
