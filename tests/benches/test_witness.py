"""The witness of the host's time counts and times all ways; quickly, a round of two of torch's models."""

import pytest

from benches.modes import MODES
from benches.witness import others, table, witnessed


@pytest.mark.full
def test_witness() -> None:
    """Each model in each mode takes some time and is predicted to; one of them calibrates."""
    costs, rows, loop_s = witnessed(quick=True)
    assert [(row.model, row.mode) for row in rows] == [
        (m, mode) for m in ("mlp", "encoder") for mode in MODES
    ]
    assert [row.calibrates for row in rows[:: len(MODES)]] == [True, False]
    assert all(row.measured_s > 0 and row.predicted_s > 0 for row in rows)
    assert costs.module_call_s > 0 and loop_s > 0
    assert table(rows, loop_s).row_count == 2


def test_those_that_are_predicted() -> None:
    """Six models have no say in the costs, where transformers is there to make them."""
    assert len(others()) in (0, 6)
