"""Of large graphs few alternatives are made: as good as any first modules."""

from unittest.mock import Mock

import networkx as nx
import pytest

import baechi
from baechi import Cluster, LayerGraph, Link
from baechi.errors import PlacementError
from baechi.place.recompute import pipeline as recompute
from baechi.verbs import plans

MICROBATCHES, LINK = 8, Link(1e-6, 1e9)


def blocks(count: int) -> LayerGraph:
    """Equal layers in a row that keep eight times what they hand on."""
    graph = nx.DiGraph(training=True)
    graph.add_node("x", kind="input")
    names = [f"l{number}" for number in range(count)]
    sizes = {"output_bytes": 32, "saved_bytes": 256, "param_bytes": 16, "grad_bytes": 16}
    for name in names:
        graph.add_node(name, forward_s=1.0, backward_s=2.0, **sizes)
    graph.add_edges_from(zip(["x", *names], names, strict=False), bytes=32)
    return LayerGraph.from_networkx(graph)


def placed(cluster: Cluster, again: object) -> baechi.Pipeline:
    """A pipeline of eight layers in eight microbatches, without a search."""
    return baechi.place(blocks(8), cluster, microbatches=MICROBATCHES, effort=0, recompute=again)  # type: ignore[arg-type]


@pytest.mark.parametrize("memory", [1200, 1800, 2600, 4000, 10_000])
def test_as_good_as_any_first_modules(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brute force over how many of the layers run again, from the first on."""
    cluster, steps = Cluster.uniform(4, memory=memory, link=LINK), list[float]()
    for count in range(9):
        try:
            steps.append(placed(cluster, [f"l{n}" for n in range(count)] or None).timeline.makespan_s)
        except PlacementError:
            continue
    monkeypatch.setattr(recompute, "_LARGE", 0)
    counted = Mock(side_effect=plans.pipelined)
    monkeypatch.setattr(plans, "pipelined", counted)
    found = placed(cluster, "auto")
    assert found.timeline.makespan_s <= 1.02 * min(steps)
    assert max(found.timeline.peak_bytes.values()) <= memory
    assert counted.call_count <= 17  # one for each outlook at most, where the first of them are too full


def test_nothing_runs_again_where_memory_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outlook of the plain graph is the best, and three are made."""
    monkeypatch.setattr(recompute, "_LARGE", 0)
    counted = Mock(side_effect=plans.pipelined)
    monkeypatch.setattr(plans, "pipelined", counted)
    assert placed(Cluster.uniform(4, link=LINK), "auto").plan.recompute == ()
    assert counted.call_count == 3


def test_what_fits_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of all modules of the best set."""
    monkeypatch.setattr(recompute, "_LARGE", 0)
    with pytest.raises(PlacementError):
        placed(Cluster.uniform(4, memory=100, link=LINK), "auto")
