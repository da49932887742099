"""The bench of pipelines measures what it says."""

import pytest

from baechi.bench.pipeline import emulated, measure, simulated
from baechi.bench.pipeline.emulated import Row as Emulated
from baechi.bench.pipeline.simulated import Row
from baechi.bench.registry import find
from baechi.order.pipeline import TEXTBOOK


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(simulated.simulated(quick=True))


@pytest.fixture(scope="module")
def ran() -> list[Emulated]:
    return list(emulated.emulated(quick=True))


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


def test_emulated_steps(ran: list[Emulated]) -> None:
    """All ways run; no step is faster than its bound, and the choice is not behind the literature."""
    assert [(row.model, row.cluster, row.microbatches) for row in ran] == [("towers", "2 equal, NVLink", 4)]
    for row in ran:
        assert list(row.steps_s) == ["one device", "auto", *TEXTBOOK, "chosen"]
        assert all(row.steps_s.values())
        assert row.steps_s["chosen"] == pytest.approx(row.predicted_s, rel=0.1)  # host-bound
        assert row.predicted_s >= row.bound_s
        assert row.over_textbook <= 1.01


def test_emulated_table(ran: list[Emulated]) -> None:
    """A line for each row; a way that could not run is a dash."""
    assert emulated.table(ran).row_count == len(ran)
    row = Emulated("m", "c", 2, {"one device": 4.0, "gpipe": None, "chosen": 2.0}, 2.0, 1.0, "hand")
    assert row.gain == 2 and "-" in list(emulated.table([row]).columns[5].cells)


def test_full_is_for_benches_with_a_longer_list() -> None:
    """Others say that they have none."""
    assert find("pipeline", full=True).keywords == {"full": True}  # type: ignore[attr-defined]
    assert find("pipeline") is measure
    with pytest.raises(ValueError, match="'host' has no longer list"):
        find("host", full=True)
