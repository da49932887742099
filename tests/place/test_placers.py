"""Every placer on every graph and cluster: judged by the checker, and by what all placers promise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.checker import check
from place.every import EVERY, plan_by
from place.graphs import CLUSTERS, HAND_MADE
from place.strategies import clusters, layer_graphs

from baechi.errors import PlacementError
from baechi.records import Cluster, LayerGraph

QUICK = EVERY[:-1]
"""Without the search, which `test_auto` tries on the same graphs."""


@pytest.mark.parametrize("placer", QUICK)
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
@pytest.mark.parametrize("graph", HAND_MADE.values(), ids=HAND_MADE.keys())
def test_hand_made(graph: LayerGraph, cluster: Cluster, placer: str) -> None:
    """A graph that one device holds is placed, and the plan is a plan."""
    plan = plan_by(placer, graph, cluster)
    check(plan)
    assert plan.placer.startswith(placer.removesuffix(":0") if "auto" in placer else placer)


@given(layer_graphs(), clusters(), st.sampled_from(EVERY))
@settings(max_examples=examples(200), deadline=None)
def test_random(graph: LayerGraph, cluster: Cluster, placer: str) -> None:
    """A plan is a plan; a refusal names a layer of the graph and is short of bytes somewhere."""
    try:
        check(plan_by(placer, graph, cluster))
    except PlacementError as error:
        assert error.layer in set(graph.placed())
        assert error.short_bytes
        assert all(short > 0 for short in error.short_bytes.values())
        assert set(error.short_bytes) <= set(cluster.names)


@given(layer_graphs(), clusters(), st.sampled_from(QUICK), st.sampled_from(["adam", "momentum", "sgd"]))
@settings(max_examples=examples(100), deadline=None)
def test_optimizer_counts(graph: LayerGraph, cluster: Cluster, placer: str, optimizer: str) -> None:
    """An optimizer handed in counts as one noted on the graph does."""
    noted = LayerGraph.from_networkx(graph)
    noted.graph["optimizer"] = optimizer
    try:
        plan = plan_by(placer, noted, cluster)
    except PlacementError as error:
        with pytest.raises(PlacementError, match=str(error.layer)):
            plan_by(placer, graph, cluster, optimizer=optimizer)
        return
    check(plan)
    assert dict(plan_by(placer, graph, cluster, optimizer=optimizer).device_of) == dict(plan.device_of)


@given(layer_graphs(), clusters(), st.sampled_from(EVERY[1:]))
@settings(max_examples=examples(200), deadline=None)
def test_one_device_is_enough(graph: LayerGraph, cluster: Cluster, placer: str) -> None:
    """What one device holds, no placer refuses."""
    try:
        plan_by("single", graph, cluster)
    except PlacementError:
        return
    check(plan_by(placer, graph, cluster))


@pytest.mark.parametrize("placer", EVERY)
def test_graph_is_left_alone(placer: str) -> None:
    """Placing changes neither graph nor cluster."""
    graph, cluster = HAND_MADE["branches in training"], CLUSTERS["unequal devices"]
    before = graph.to_json(), cluster.to_json()
    plan_by(placer, graph, cluster)
    assert (graph.to_json(), cluster.to_json()) == before


@pytest.mark.parametrize("placer", EVERY)
def test_unknown_pin(placer: str) -> None:
    """A pin to a device that is not there is refused by its name."""
    graph = LayerGraph.from_networkx(HAND_MADE["pinned"])
    graph.nodes["b"]["pin"] = "moon"
    with pytest.raises(PlacementError, match=r"b is pinned to 'moon': the devices are d0, d1") as caught:
        plan_by(placer, graph, CLUSTERS["two devices"])
    assert caught.value.layer == "b"


@pytest.mark.parametrize("placer", EVERY)
def test_torn_group(placer: str) -> None:
    """Two pins that tear a group are refused."""
    graph = LayerGraph.from_networkx(HAND_MADE["tied ends"])
    graph.nodes["embed"]["pin"] = "d0"
    graph.nodes["head"]["pin"] = "d1"
    with pytest.raises(PlacementError, match=r"head is pinned to 'd1'.*'d0'"):
        plan_by(placer, graph, CLUSTERS["two devices"])
