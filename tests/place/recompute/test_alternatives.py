"""Numbers of microbatches and modules that run again, searched together: as good as trying all of them."""

from collections.abc import Iterator
from itertools import combinations
from random import Random
from unittest.mock import Mock

import networkx as nx
import pytest

import baechi
from baechi import Cluster, LayerGraph, Link
from baechi.errors import PlacementError
from baechi.place.recompute import alternatives
from baechi.place.recompute.alternatives import Alternative, Alternatives

NUMBERS = (2, 4)
LINK = Link(0.01, 1e5)
CHAIN = [("l0", ("x",)), ("l1", ("l0",)), ("l2", ("l1",)), ("l3", ("l2",))]
SKIPS = [("d0", ("x",)), ("d1", ("d0",)), ("u0", ("d1",)), ("u1", ("u0", "d0"))]
TOWERS = [("a0", ("x",)), ("a1", ("a0",)), ("b0", ("x",)), ("b1", ("b0",)), ("head", ("a1", "b1"))]

Shape = list[tuple[str, tuple[str, ...]]]


def graph_of(shape: Shape, number: int, seed: int) -> LayerGraph:
    """Layers of unequal times and bytes, with the costs of one microbatch."""
    chance, graph = Random(seed), nx.DiGraph(training=True)
    graph.add_node("x", kind="input")
    for name, sources in shape:
        forward_s, saved = chance.choice([1.0, 1.0, 2.0, 0.5]), chance.choice([64, 128, 256])
        seconds = {"forward_s": forward_s / number + 0.02, "backward_s": 2 * forward_s / number + 0.02}
        sizes = {"output_bytes": 32 // number, "saved_bytes": saved // number}
        weight = chance.choice([4, 8])
        graph.add_node(name, **seconds, **sizes, param_bytes=weight, grad_bytes=weight)
        graph.add_edges_from([(source, name) for source in sources], bytes=32 // number)
    return LayerGraph.from_networkx(graph)


def every(graphs: dict[int, LayerGraph], cluster: Cluster) -> Iterator[float]:
    """The steps of all numbers with all sets of layers that run again."""
    layers = list(graphs[NUMBERS[0]].placed())
    for number in graphs:
        for size in range(len(layers) + 1):
            for names in combinations(layers, size):
                try:
                    made = place(graphs, cluster, number, list(names))
                except PlacementError:
                    continue
                yield made.timeline.makespan_s


def place(graphs: dict[int, LayerGraph], cluster: Cluster, number: int, names: list[str]) -> baechi.Pipeline:
    return baechi.place(
        graphs[number], cluster, microbatches=number, effort=0, recompute=names if names else None
    )


@pytest.mark.parametrize(
    ("shape", "seed", "share"),
    [(CHAIN, 0, 0.7), (SKIPS, 0, 0.7), (TOWERS, 0, 0.8)],
    ids=["chain", "skips", "towers"],
)
def test_as_good_as_all_of_them(shape: Shape, seed: int, share: float) -> None:
    """Where memory is short, the step is that of the best number with the best modules."""
    graphs = {number: graph_of(shape, number, seed) for number in NUMBERS}
    roomy = auto(graphs, Cluster.uniform(2, link=LINK))
    most = max(roomy.timeline.peak_bytes.values())
    cluster = Cluster.uniform(2, memory=round(share * most), link=LINK)
    found = auto(graphs, cluster)
    assert found.timeline.makespan_s == pytest.approx(min(every(graphs, cluster)))


def auto(graphs: dict[int, LayerGraph], cluster: Cluster) -> baechi.Pipeline:
    return baechi.place(graphs, cluster, microbatches="auto", effort=0, recompute="auto")


def test_nothing_runs_again_where_memory_is_no_limit() -> None:
    """More memory would not help, so nothing is compared."""
    graphs = {number: graph_of(CHAIN, number, 0) for number in NUMBERS}
    assert auto(graphs, Cluster.uniform(2, link=LINK)).plan.recompute == ()


def test_what_fits_no_other_way() -> None:
    """With 80 bytes nothing fits unless layers run again; with 8 nothing fits at all."""
    graphs = {number: graph_of(CHAIN, number, 2) for number in (2, 8)}
    tight = Cluster.uniform(2, memory=80, link=LINK)
    with pytest.raises(PlacementError):
        baechi.place(graphs, tight, microbatches="auto", effort=0)
    found = auto(graphs, tight)
    assert found.plan.recompute and max(found.timeline.peak_bytes.values()) <= 80
    with pytest.raises(PlacementError):
        auto(graphs, Cluster.uniform(2, memory=8, link=LINK))


def test_it_ends_when_nothing_more_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alternative of 60 modules has thousands of neighbours, and 30 may be made."""
    looked_at = Mock(wraps=alternatives.outermost)
    monkeypatch.setattr(alternatives, "outermost", looked_at)

    def made(one: Alternative) -> Mock | None:
        step_s = 1 / one.microbatches + 0.01 * len(one.names)
        return Mock(timeline=Mock(makespan_s=step_s)) if len(one.names) >= 20 else None

    names = [f"l{number}" for number in range(60)]
    search = Alternatives(NUMBERS, [names], made, lambda one: 0.5 / one.microbatches, 30)
    assert search.search()
    assert looked_at.call_count < 300
