"""The bench of pipelines measures what it says."""

from dataclasses import replace

import pytest
from records.pipeline.chains import chain, over

from baechi import pipeline
from baechi.order.pipeline import TEXTBOOK
from baechi.records import LayerGraph
from baechi.records.device import HostCosts
from baechi.simulate.pipeline import costs_of
from benches.pipeline import batches, emulated, measure
from benches.pipeline.apart import with_weights_apart
from benches.pipeline.emulated import Row as Emulated
from benches.registry import find


@pytest.fixture(scope="module")
def ran() -> list[Emulated]:
    return list(emulated.emulated(quick=True))


def test_emulated_steps(ran: list[Emulated]) -> None:
    """All ways run; no step is faster than its bound, and the choice is not behind the literature."""
    assert [(row.model, row.cluster, row.microbatches) for row in ran] == [("towers", "2 equal, NVLink", 4)]
    for row in ran:
        (known,) = set(row.steps_s) & set(TEXTBOOK)
        assert list(row.steps_s) == ["one device", "auto", known, "chosen", "weights apart"]
        assert all(row.steps_s.values())
        # a prediction does not know what torch itself takes of the host
        assert row.steps_s["chosen"] >= 0.9 * row.predicted_s
        assert row.predicted_s >= row.bound_s * (1 - 1e-9)  # sums of the same seconds in another order
        assert row.over_textbook <= 1.01


def test_backward_of_weights_apart() -> None:
    """Three equal layers, one a device, two microbatches: the first device is never idle from 5 s on."""
    graph = chain([(1.0, 2.0)] * 3)
    for name in graph.placed():
        graph.nodes[name].update(grad_bytes=8, param_bytes=8, backward_flops=8)
    made = pipeline(over(graph, [0, 1, 2]), 2, "gpipe")
    assert made.timeline.makespan_s == pytest.approx(12)
    apart = with_weights_apart(made)
    assert apart.units.weights_of == (1, 2)  # no other stage waits for the first
    assert apart.timeline.makespan_s == pytest.approx(3 + 1 + 1 + 2 * 2)


def test_apart_where_the_graph_does_not_know_the_host() -> None:
    """What the cluster says of the host's tasks is not counted then, as in the plain step."""
    graph = chain([(1.0, 2.0)] * 3)
    for name in graph.placed():
        graph.nodes[name].update(grad_bytes=8, param_bytes=8, backward_flops=8)
    plan = over(graph.noted(weights_apart=True), [0, 1, 2])
    plan = replace(plan, cluster=replace(plan.cluster, host=HostCosts.usual()))
    assert costs_of(plan).host_backward_s == [0.0] * 5


def test_emulated_table(ran: list[Emulated]) -> None:
    """A line for each row; a way that could not run is a dash."""
    assert emulated.table(ran).row_count == len(ran)
    row = Emulated("m", "c", 2, {"one device": 4.0, "gpipe": None, "chosen": 2.0}, 2.0, 1.0, "hand")
    assert row.gain == 2 and "-" in list(emulated.table([row]).columns[5].cells)


def kept_by_rows(rows: int) -> LayerGraph:
    """Four equal layers; what they keep grows with the rows. A batch of 64 fits 1.8 times on four devices."""
    graph = chain([(1.0, 2.0)] * 4, size=rows)
    for name in graph.placed():
        graph.nodes[name].update(saved_bytes=1000 * rows, output_bytes=rows, module=name)
    return graph


def test_largest_batches() -> None:
    """All microbatches in flight hold the whole batch, as GPipe's do; with one in flight, far more fits."""
    fits = batches._Fits(kept_by_rows, 64)
    ways = (fits.without, fits.gpipe, fits.chosen, fits.run_again)
    assert [8 * batches.largest_that(way, 128) for way in ways] == [112, 112, 912, 912]
    shown = batches.table([batches.Row("m", 64, {"gpipe": 104, "chosen": 0})])
    assert [list(column.cells) for column in shown.columns] == [["m"], ["64"], ["104"], ["none"]]


def test_parts_of_the_list() -> None:
    """Models and clusters by name; unknown ones are refused."""
    (row,) = emulated.emulated(quick=True, models=["skips"], devices=["2 unequal"])
    assert (row.model, row.cluster) == ("skips", "2 unequal, NVLink")
    with pytest.raises(ValueError, match="there is no model nothing: there are towers, skips"):
        next(emulated.emulated(quick=True, models=["nothing"]))
    with pytest.raises(ValueError, match="no cluster begins with 3 equal"):
        measure(quick=True, devices=["3 equal"])


def test_parts_are_of_benches_that_have_some() -> None:
    """Others run as a whole."""
    assert find("pipeline", models=["gpt2"]).keywords == {"models": ["gpt2"]}  # type: ignore[attr-defined]
    assert find("pipeline") is measure
    with pytest.raises(ValueError, match="of the bench 'truth' no part can be run"):
        find("truth", models=["gpt2"])
