"""Layered random graphs are what they are said to be."""

from statistics import mean

import pytest

from baechi.cost.transfer import transfer_s
from baechi.verbs.plans import place
from benches.models.layered import LINK, MEAN_LAYER_S, cluster_for, layered


def row_of(name: str) -> int:
    """`row7.3` > 7."""
    return int(name.removeprefix("row").partition(".")[0])


@pytest.mark.parametrize(("layers", "width"), [(1, None), (100, None), (90, 20)])
def test_rows(layers: int, width: int | None) -> None:
    """So many layers; one to three parents from the three rows above; rows as wide as they should be."""
    graph = layered(layers, width=width)
    rows = [sum(row_of(name) == row for name in graph) for row in range(1 + max(map(row_of, graph)))]
    assert sum(rows) == len(graph) == layers
    assert all(size == width for size in rows[:-1]) if width else max(rows) <= layers**0.5
    for name in graph:
        parents = list(graph.predecessors(name))
        assert (row_of(name) == 0) == (not parents)
        assert len(parents) <= 3
        assert all(1 <= row_of(name) - row_of(parent) <= 3 for parent in parents)


def test_seeded() -> None:
    """Equal seeds give equal graphs, others others."""
    assert layered(50, seed=3).to_json() == layered(50, seed=3).to_json() != layered(50, seed=4).to_json()


@pytest.mark.parametrize("travel", [1.0, 5.0])
def test_means(travel: float) -> None:
    """Times have the mean that they should, and tensors travel as long as they should."""
    graph = layered(5000, travel=travel)
    assert mean(graph.amount(name, "forward_s") for name in graph) == pytest.approx(MEAN_LAYER_S, rel=0.05)
    sizes = [graph.amount(name, "output_bytes") for name in graph]
    assert mean(transfer_s(LINK, s) for s in sizes) == pytest.approx(travel * MEAN_LAYER_S, rel=0.05)


@pytest.mark.parametrize("training", [False, True])
def test_slack(training: bool) -> None:
    """With half as much memory again it is placed on several devices; one alone cannot hold it."""
    graph = layered(100, training=training)
    cluster = cluster_for(graph, 4)
    assert len(place(graph, cluster, "m-etf").devices_used) == 4
    assert 4 * cluster.devices[0].memory_bytes >= 1.5 * sum(graph.amount(n, "param_bytes") for n in graph)
