"""m-TOPO: pieces of the topological order, of about equal memory."""

import pytest
from hypothesis import given, settings
from matrix import examples
from place.graphs import branches, chain, cluster_of, graph_of
from place.strategies import layer_graphs

from baechi.place.placers.m_topo import cap_bytes, m_topo
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph


def test_equal_pieces() -> None:
    """Twelve equal layers on three devices: the cap is a third of all and one more."""
    graph = graph_of({f"l{i}": {"param_bytes": 10} for i in range(12)})
    plan = m_topo(graph, cluster_of(1000, 1000, 1000))
    assert cap_bytes(Problem(graph, cluster_of(1, 1, 1))) == 12 * 10 / 3 + 10
    assert [len(plan.order_on(device)) for device in ("d0", "d1", "d2")] == [5, 5, 2]


@pytest.mark.parametrize("graph", [chain(9), branches(4, 3), chain(7, training=True)])
def test_never_back(graph: LayerGraph) -> None:
    """In topological order the devices come in theirs."""
    plan = m_topo(graph, cluster_of(1000, 1000, 1000))
    devices = [plan.device_of[name] for name in plan.order]
    assert devices == sorted(devices)
    assert len(set(devices)) > 1


def test_code_order() -> None:
    """Layers run in code order, so nothing has to be reordered."""
    graph = branches(4, 3)
    assert m_topo(graph, cluster_of(1000, 1000)).order == tuple(graph.placed())


@given(layer_graphs(pins=False))
@settings(max_examples=examples(200), deadline=None)
def test_cap_suffices(graph: LayerGraph) -> None:
    """With so much memory on each device nothing is left over at the end: the walk never goes back."""
    plan = m_topo(graph, cluster_of(*[10**6] * 3))
    groups = graph.groups().values()
    index = {name: place for place, name in enumerate(plan.order)}
    firsts = sorted(min(members, key=index.__getitem__) for members in groups)
    devices = [plan.device_of[name] for name in sorted(firsts, key=index.__getitem__)]
    assert devices == sorted(devices)


def test_small_device() -> None:
    """A device with less memory than the cap gets less; what is left at the end goes to the others."""
    graph = graph_of({f"l{i}": {"param_bytes": 10} for i in range(12)})
    plan = m_topo(graph, cluster_of(15, 1000, 1000))
    assert [len(plan.order_on(device)) for device in ("d0", "d1", "d2")] == [1, 6, 5]


def test_left_over_goes_anywhere() -> None:
    """What finds no room at the end of the walk goes back to where it fits."""
    graph = graph_of({"a": {"param_bytes": 10}, "b": {"param_bytes": 90}, "c": {"param_bytes": 80}})
    plan = m_topo(graph, cluster_of(100, 100))
    assert dict(plan.device_of) == {"a": "d0", "b": "d0", "c": "d1"}
    graph.add_node("d", kind="layer", param_bytes=20)
    assert m_topo(graph, cluster_of(110, 100)).device_of["d"] == "d1"


def test_pins_count_against_the_cap() -> None:
    """A pinned layer takes its part of the device's cap."""
    graph = graph_of({f"l{i}": {"param_bytes": 10} for i in range(6)})
    graph.nodes["l5"]["pin"] = "d0"
    plan = m_topo(graph, cluster_of(1000, 1000))
    assert plan.order_on("d0") == ("l0", "l1", "l2", "l5")


def test_order_of_devices() -> None:
    """Devices are filled in the cluster's order, whatever their names."""
    cluster = cluster_of(1000, 1000)
    turned = Cluster(cluster.devices[::-1], link=cluster.link)
    assert m_topo(chain(), turned).device_of["l0"] == "d1"
