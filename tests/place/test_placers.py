"""Every placer on every graph and cluster: judged by the checker, and by what all placers promise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from place.checker import check
from place.graphs import CLUSTERS, HAND_MADE
from place.strategies import clusters, layer_graphs

from baechi.errors import PlacementError
from baechi.place import find
from baechi.records import Cluster, LayerGraph

PLACERS = ("single", "m-topo", "m-etf", "m-sct", "chain", "even", "round-robin", "random:0", "random:1")


@pytest.mark.parametrize("placer", PLACERS)
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
@pytest.mark.parametrize("graph", HAND_MADE.values(), ids=HAND_MADE.keys())
def test_hand_made(graph: LayerGraph, cluster: Cluster, placer: str) -> None:
    """A graph that one device holds is placed, and the plan is a plan."""
    plan = find(placer)(graph, cluster)
    check(plan)
    assert plan.placer == placer


@given(layer_graphs(), clusters(), st.sampled_from(PLACERS))
@settings(max_examples=400, deadline=None)
def test_random(graph: LayerGraph, cluster: Cluster, placer: str) -> None:
    """A plan is a plan; a refusal names a layer of the graph and is short of bytes somewhere."""
    try:
        check(find(placer)(graph, cluster))
    except PlacementError as error:
        assert error.layer in set(graph.placed())
        assert error.short_bytes
        assert all(short > 0 for short in error.short_bytes.values())
        assert set(error.short_bytes) <= set(cluster.names)


@given(layer_graphs(), clusters(), st.sampled_from(PLACERS), st.sampled_from(["adam", "momentum", "sgd"]))
@settings(max_examples=100, deadline=None)
def test_optimizer_counts(graph: LayerGraph, cluster: Cluster, placer: str, optimizer: str) -> None:
    """An optimizer handed in counts as one noted on the graph does."""
    noted = LayerGraph.from_networkx(graph)
    noted.graph["optimizer"] = optimizer
    try:
        plan = find(placer)(noted, cluster)
    except PlacementError as error:
        with pytest.raises(PlacementError, match=str(error.layer)):
            find(placer)(graph, cluster, optimizer=optimizer)
        return
    check(plan)
    assert dict(find(placer)(graph, cluster, optimizer=optimizer).device_of) == dict(plan.device_of)


@given(layer_graphs(), clusters(), st.sampled_from(PLACERS[1:]))
@settings(max_examples=200, deadline=None)
def test_one_device_is_enough(graph: LayerGraph, cluster: Cluster, placer: str) -> None:
    """What one device holds, no placer refuses."""
    try:
        find("single")(graph, cluster)
    except PlacementError:
        return
    check(find(placer)(graph, cluster))


@pytest.mark.parametrize("placer", PLACERS)
def test_graph_is_left_alone(placer: str) -> None:
    """Placing changes neither graph nor cluster."""
    graph, cluster = HAND_MADE["branches in training"], CLUSTERS["unequal devices"]
    before = graph.to_json(), cluster.to_json()
    find(placer)(graph, cluster)
    assert (graph.to_json(), cluster.to_json()) == before


@pytest.mark.parametrize("placer", PLACERS)
def test_unknown_pin(placer: str) -> None:
    """A pin to a device that is not there is refused by its name."""
    graph = LayerGraph.from_networkx(HAND_MADE["pinned"])
    graph.nodes["b"]["pin"] = "moon"
    with pytest.raises(PlacementError, match=r"b is pinned to 'moon': the devices are d0, d1") as caught:
        find(placer)(graph, CLUSTERS["two devices"])
    assert caught.value.layer == "b"


@pytest.mark.parametrize("placer", PLACERS)
def test_torn_group(placer: str) -> None:
    """Two pins that tear a group are refused."""
    graph = LayerGraph.from_networkx(HAND_MADE["tied ends"])
    graph.nodes["embed"]["pin"] = "d0"
    graph.nodes["head"]["pin"] = "d1"
    with pytest.raises(PlacementError, match=r"head is pinned to 'd1'.*'d0'"):
        find(placer)(graph, CLUSTERS["two devices"])
