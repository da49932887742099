"""The bench of steps runs each way dry, marks what does not fit, and says what bounds the fastest way."""

import pytest

from benches import steps
from benches.steps import OURS, WAYS, Row, Way


@pytest.mark.full
def test_ways() -> None:
    """A small model runs in each way, but splits no layer; the host bounds it."""
    (row,) = steps.steps(quick=True)
    assert list(row.ways) == list(WAYS)
    assert [name for name, way in row.ways.items() if way.why_not] == ["split"]
    assert row.bound == "host" and row.taken_s > 0
    assert row.ways[row.best].step_s == min(row.ways[name].step_s for name in OURS[:-1])
    shown = steps.table([row])
    assert shown.row_count == 1 and "-" in list(shown.columns[4 + len(WAYS) - 1].cells)


def test_what_bounds() -> None:
    """That of the fastest way that fits; memory, where one device would be as fast and has too little."""
    one, slow, fast = Way(1.0, fits=False), Way(0.99, bound="link"), Way(0.5, 0.9, bound="host")
    ways = {"one device": one, "code's order": slow}
    assert Row("m", "c", 8, ways).bound == "memory"
    assert Row("m", "c", 8, {**ways, "pipelined": fast}).bound == "host"
    assert Row("m", "c", 8, {**ways, "pipelined": fast}).gain == 2
    assert Row("m", "c", 8, {**ways, "pipelined": Way(0.5, fits=False)}).best == "code's order"


def test_cells() -> None:
    """Milliseconds; a star: too little memory; an r: modules run again; a dash: no figure."""
    assert [str(Way(1.5)), str(Way(1.5, fits=False)), str(Way(why_not="refused"))] == [
        "1,500.0",
        "1,500.0*",
        "-",
    ]


def test_parts_of_the_list() -> None:
    """Models and clusters by how their names begin; what is not there is refused."""
    with pytest.raises(ValueError, match="no model begins so"):
        next(steps.steps(quick=True, models=["GPT-2"]))
    chosen = {(case.model, case.cluster) for case in steps.cases()}
    assert ("U-Net 256 x 256, 64", "4 A100") in chosen
    assert {cluster for _, cluster in chosen} == set(steps.clusters())
