"""Dead ends of the greedy placers: other ways."""

import pytest
from place.checker import check
from place.graphs import BYTE_A_SECOND, cluster_of, graph_of

from baechi.place import find
from baechi.records import LayerGraph

GREEDY = ("m-topo", "m-etf", "m-sct", "chain", "even", "round-robin", "random:0")


def blocks(*sizes: int) -> LayerGraph:
    """Layers of these sizes, without edges."""
    return graph_of({f"l{index}": {"param_bytes": size} for index, size in enumerate(sizes)})


@pytest.mark.parametrize("placer", GREEDY)
def test_packing(placer: str) -> None:
    """Small layers first spoil both devices for the large ones; packing by size fits all."""
    plan = find(placer)(blocks(30, 30, 70, 70), cluster_of(100, 100))
    check(plan)
    assert plan.device_of["l2"] != plan.device_of["l3"]


def test_note() -> None:
    """A rescued plan says so: which layer found no room, and what was done."""
    plan = find("m-etf")(blocks(30, 30, 70, 70), cluster_of(100, 100))
    (candidate,) = plan.candidates
    assert plan.placer == candidate.placer == "m-etf"
    assert candidate.note == "found no room for l3: placed by packing instead"


def test_filling() -> None:
    """Packed by size, tensors cross between the devices and need memory; filled in order, few do."""
    nodes = {f"l{index}": {"param_bytes": 10 + index % 2, "forward_s": 1} for index in range(20)}
    edges = [(f"l{index}", f"l{index + 1}", 9) for index in range(19)]
    graph = graph_of(nodes, edges, training=True)
    plan = find("random:0")(graph, cluster_of(128, 128))
    check(plan)
    assert "filling" in plan.candidates[0].note


@pytest.mark.parametrize("placer", GREEDY)
def test_outputs_that_pile_up(placer: str) -> None:
    """Outputs that are all read at the end do not fit one device, and are spread."""
    nodes = {f"l{i}": {"forward_s": 1, "output_bytes": 30} for i in range(4)} | {"sum": {"pin": "d0"}}
    graph = graph_of(nodes, [(f"l{i}", "sum", 0) for i in range(4)])
    plan = find(placer)(graph, cluster_of(70, 70, link=BYTE_A_SECOND))
    assert len(plan.devices_used) == 2
