"""The bench of pipelines measures what it says."""

import pytest

from baechi.bench.pipeline import simulated
from baechi.bench.pipeline.simulated import Row


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(simulated.simulated(quick=True))


def test_every_model_on_every_cluster(rows: list[Row]) -> None:
    """Towers and skips on two devices, equal and not, with one and four microbatches."""
    found = {(row.model, row.cluster, row.microbatches) for row in rows}
    names = [(model, f"2 {kind}, NVLink") for model in ("towers", "skips") for kind in ("equal", "unequal")]
    assert found == {(*name, number) for name in names for number in (1, 4)}


def test_never_behind_the_literature(rows: list[Row]) -> None:
    """The choice is as fast as GPipe, 1F1B and interleaved on its stages, and no faster than the bound."""
    assert all(row.over_textbook <= 1 for row in rows)
    assert all(row.over_bound >= 1 - 1e-9 for row in rows)


def test_table(rows: list[Row]) -> None:
    """A line for each model and cluster, a column for each number."""
    shown = simulated.table(rows)
    assert len(shown.rows) == 4
    assert [column.header for column in shown.columns][2:4] == ["1", "4"]
    assert simulated.table([Row("m", "c", 2, None)]).row_count == 1
