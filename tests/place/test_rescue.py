"""Dead ends of the greedy placers: other ways, and the refusal."""

import re

import pytest
from place.checker import check
from place.graphs import BYTE_A_SECOND, cluster_of, graph_of

from baechi.errors import PlacementError
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
def test_refusal(placer: str) -> None:
    """The error names the layer, its group, the bytes short on each device, and cures."""
    layer = {"param_bytes": 2048, "colocate": "tied"}
    graph = graph_of({"a": {"param_bytes": 1024}, "b": dict(layer), "c": dict(layer)}, training=True)
    with pytest.raises(PlacementError) as caught:
        find(placer)(graph, cluster_of(3072, 2048))
    assert str(caught.value) == (
        "no room for layer b and 1 more that must share its device: needs 4.00 KiB, "
        "and copies of what it reads from other devices\n"
        "  d0: 3.00 KiB of 3.00 KiB free, 1.00 KiB short\n"
        "  d1: 2.00 KiB of 2.00 KiB free, 2.00 KiB short\n"
        "All layers need at least 5.00 KiB, the devices have 5.00 KiB.\n"
        "What would help: another device, devices with more memory, an optimizer with less state, "
        "or a smaller batch."
    )
    assert caught.value.layer == "b"
    assert caught.value.short_bytes == {"d0": 1024, "d1": 2048}


@pytest.mark.parametrize("placer", GREEDY)
def test_pinned_refusal(placer: str) -> None:
    """Pinned layers that do not fit are refused on their device alone."""
    graph = graph_of({"a": {"param_bytes": 60, "pin": "d1"}, "b": {"param_bytes": 60, "pin": "d1"}})
    with pytest.raises(PlacementError, match=re.escape("no room for layer a, pinned there")) as caught:
        find(placer)(graph, cluster_of(1000, 100))
    assert caught.value.short_bytes == {"d1": 20}


@pytest.mark.parametrize("placer", GREEDY)
def test_outputs_that_pile_up(placer: str) -> None:
    """Outputs that are all read at the end do not fit one device, and are spread."""
    nodes = {f"l{i}": {"forward_s": 1, "output_bytes": 30} for i in range(4)} | {"sum": {"pin": "d0"}}
    graph = graph_of(nodes, [(f"l{i}", "sum", 0) for i in range(4)])
    plan = find(placer)(graph, cluster_of(70, 70, link=BYTE_A_SECOND))
    assert len(plan.devices_used) == 2
