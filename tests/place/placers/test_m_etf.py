"""m-ETF: the definition without memory and groups, and what these add."""

import networkx as nx
import pytest
from hypothesis import given, settings
from matrix import examples
from place.checker import check
from place.graphs import BYTE_A_SECOND, FREE, branches, chain, cluster_of, graph_of, late_groups
from place.placers.naive_etf import NaiveETF
from place.strategies import clusters, layer_graphs

from baechi.place.placers.m_etf import m_etf
from baechi.records import Cluster, Device, LayerGraph, Link
from baechi.simulate import simulate


@given(layer_graphs(pins=False), clusters())
@settings(max_examples=examples(400), deadline=None)
def test_is_etf(graph: LayerGraph, cluster: Cluster) -> None:
    """With room and without groups it decides as the definition of ETF does, ties included."""
    roomy = Cluster(
        tuple(Device(d.name, memory_bytes=10**9, speed=d.speed) for d in cluster.devices),
        cluster.links,
        cluster.link,
        cluster.reception,
    )
    nx.set_node_attributes(graph, None, "colocate")
    plan = m_etf(graph, roomy)
    assert [(name, plan.device_of[name]) for name in plan.order] == NaiveETF(graph, roomy).order


def test_branches_spread() -> None:
    """Branches run beside each other when tensors travel fast."""
    plan = m_etf(branches(width=3), cluster_of(*[1000] * 3, link=FREE))
    assert len({plan.device_of[f"b{branch}.0"] for branch in range(3)}) == 3


def test_branches_stay_together() -> None:
    """Branches stay where their input is when tensors travel slowly."""
    plan = m_etf(branches(width=2, depth=1), cluster_of(1000, 1000, link=Link(100.0, 1.0)))
    assert plan.devices_used == ("d0",)


def test_queue_counts() -> None:
    """The second tensor for a device would queue behind the first, so it takes a slower, free link."""
    nodes = {name: {"pin": "d0"} for name in ("x", "y")} | {"busy": {"forward_s": 100, "pin": "d0"}}
    graph = graph_of(nodes | {name: {"forward_s": 9} for name in "ab"}, [("x", "a", 4), ("y", "b", 4)])
    links = {("d0", "d1"): Link(0.0, 1.0), ("d0", "d2"): Link(0.0, 0.6)}
    plan = m_etf(graph, cluster_of(*[1000] * 3, links=links))
    assert (plan.device_of["a"], plan.device_of["b"]) == ("d1", "d2")


def test_group_goes_where_it_ends_first() -> None:
    """Groups with light first layers spread; deciding by the first layer would pile them up."""
    plan = m_etf(late_groups(4, heavy_s=10), cluster_of(*[1000] * 4, link=FREE))
    assert simulate(plan).makespan_s == 10
    assert len(plan.devices_used) == 4


def test_whole_group_must_fit() -> None:
    """A group goes where all of it fits, although its first layer alone would fit elsewhere."""
    layer = {"forward_s": 1, "param_bytes": 40, "colocate": "g"}
    graph = graph_of({"a": dict(layer), "b": dict(layer), "c": dict(layer)}, [("a", "b", 0), ("b", "c", 0)])
    plan = m_etf(graph, cluster_of(100, 130))
    assert set(plan.device_of.values()) == {"d1"}


def test_faster_device_wins_ties() -> None:
    """Of devices on which a layer could start at the same time, the one that ends it sooner runs it."""
    plan = m_etf(chain(1), cluster_of(1000, 1000, speeds=(1, 4)))
    assert plan.device_of["l0"] == "d1"


def test_times_by_kind() -> None:
    """Times given by kind of device are used as they are."""
    devices = (Device("d0", kind="slow", memory_bytes=99), Device("d1", kind="fast", memory_bytes=99))
    graph = graph_of({"a": {"forward_s": {"slow": 9.0, "fast": 2.0}}})
    plan = m_etf(graph, Cluster(devices, link=FREE))
    assert plan.device_of["a"] == "d1"


@pytest.mark.parametrize("back_s", [0.0, 9.0])
def test_way_back_counts_in_training(back_s: float) -> None:
    """In training a branch leaves only if that is worth the gradient's way back."""
    links = {("d0", "d1"): FREE, ("d1", "d0"): Link(back_s, float("inf"))}
    graph = branches(width=2, depth=1, training=True)
    plan = m_etf(graph, cluster_of(1000, 1000, links=links))
    assert (len(plan.devices_used) == 2) == (back_s == 0)


def test_waits_for_room() -> None:
    """A layer that finds no room now is run where outputs get freed, when they are."""
    nodes = {
        "a": {"forward_s": 1, "output_bytes": 60},
        "c": {"forward_s": 1, "output_bytes": 60},
        "b": {"forward_s": 1, "output_bytes": 1},
    }
    plan = m_etf(graph_of(nodes, [("a", "b", 60)]), cluster_of(100, link=BYTE_A_SECOND))
    check(plan)
    assert plan.order == ("a", "b", "c")
    assert not plan.candidates
