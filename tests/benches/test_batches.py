"""The largest batches: found by bisection, and what baechi fits accelerate's map does not exceed."""

import pytest

from benches import batches


def test_bisection() -> None:
    """The largest number that fits, the most that is tried, or none."""
    for limit, found in ((0, 0), (1, 1), (18, 18), (31, 31), (32, 32), (1000, 32)):
        assert batches.largest_that(lambda number, limit=limit: number <= limit, 32) == found


@pytest.mark.full
def test_quick() -> None:
    """The map of accelerate, which counts weights only, trains no larger batch than auto's plan."""
    rows = list(batches.batches(quick=True))
    assert [row.model for row in rows] == ["transformer"]
    for row in rows:
        assert row.largest["single"] < row.usual < row.largest["auto"]
        assert row.largest["accelerate"] <= row.largest["auto"] >= row.largest["m-etf"] > 0
