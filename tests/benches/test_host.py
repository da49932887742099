"""The bench of ranks' hosts measures what it says."""

import pytest

from benches.host import of_ranks


@pytest.mark.nightly
def test_shares() -> None:
    """All tasks are some rank's; nobody takes less than nothing."""
    found = of_ranks("chain, 13 layers 8 wide", 2, steps=3)
    assert [one.rank for one in found] == [0, 1]
    assert sum(one.share for one in found) == pytest.approx(1.0)
    assert all(0 < one.own_s <= one.process_s * 1.01 for one in found)
