"""The largest batches: found by bisection, and what baechi fits accelerate's map does not exceed."""

from collections.abc import Callable

import baechi
from baechi.bench import batches
from baechi.errors import PlacementError


def graph_of(batch: int) -> baechi.LayerGraph:
    graph = baechi.LayerGraph()
    graph.add_node("a", kind="layer", output_bytes=batch)
    return graph


def up_to(limit: int) -> Callable[[baechi.LayerGraph], baechi.Plan]:
    def place_it(graph: baechi.LayerGraph) -> baechi.Plan:
        if graph.nodes["a"]["output_bytes"] > limit:
            raise PlacementError("too large")
        return baechi.place(graph, baechi.Cluster.uniform(1), "single")

    return place_it


def test_bisection() -> None:
    """The largest multiple of the step that is placed, the most that is tried, or none."""
    for limit, found in ((0, 0), (1, 0), (2, 2), (37, 36), (63, 62), (64, 64), (1000, 64)):
        assert batches._largest(graph_of, 2, 32, up_to(limit)) == found


def test_quick() -> None:
    """The map of accelerate, which counts weights only, trains no larger batch than auto's plan."""
    rows = list(batches.batches(quick=True))
    assert [row.model for row in rows] == ["transformer"]
    for row in rows:
        assert row.largest["single"] < row.usual < row.largest["auto"]
        assert row.largest["accelerate"] <= row.largest["auto"] >= row.largest["m-sct"] > 0
