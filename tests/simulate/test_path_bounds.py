"""The longest path of a step, with what the host sends, fetches and issues; no plan is faster."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import BYTE_A_SECOND, FREE, cluster_of, graph_of
from place.strategies import clusters, layer_graphs

from baechi.records import Cluster, LayerGraph
from baechi.simulate import shortest_step_s, simulate
from baechi.verbs.plans import place

LAYER = {"forward_s": 1, "backward_s": 2}
INPUT = {"kind": "input"}
SLOW = Cluster(cluster_of(99, 99).devices, link=BYTE_A_SECOND)  # uploads take time, too


def step_s(nodes: dict[str, dict[str, Any]], *edges: tuple[Any, ...], cluster: Cluster = SLOW) -> float:
    """The bound; it is met by a single device."""
    graph = graph_of(nodes, edges, training=any("losses" in node for node in nodes.values()))
    bound_s = shortest_step_s(graph, cluster)
    assert place(graph, cluster, "single").timeline.makespan_s == pytest.approx(bound_s)
    return bound_s


def test_inputs_are_sent() -> None:
    """A layer waits for its input, over the link that is nearest to the host."""
    edges = [("input:x", "a", 5), ("a", "b", 3)]
    assert step_s({"input:x": INPUT, "a": LAYER, "b": LAYER}, *edges) == 5 + 2
    near = replace(SLOW, links={("host", "d0"): FREE})
    assert step_s({"input:x": INPUT, "a": LAYER, "b": LAYER}, *edges, cluster=near) == 2


def test_late_inputs_hide_behind_layers() -> None:
    """An input that only a later layer reads is on its way meanwhile."""
    nodes = {"input:x": INPUT, "a": LAYER, "b": LAYER}
    assert step_s(nodes, ("input:x", "b", 1), ("a", "b", 3)) == 2


def test_outputs_are_fetched_in_turn() -> None:
    """The host fetches one output after the other, the first when its layer is over."""
    nodes = {"a": {**LAYER, "returned": {"0": 4}}, "b": {**LAYER, "returned": {"1": 3}}}
    graph = graph_of(nodes, [("a", "b", 0)])
    assert shortest_step_s(graph, SLOW) == 1 + 4 + 3


def test_gradients_begin_at_the_host() -> None:
    """The gradient of a loss that was fetched is sent, before any layer goes back."""
    nodes = {"a": LAYER, "b": {**LAYER, "returned": {"0": 4}, "losses": {"0": 4}}}
    assert step_s(nodes, ("a", "b", 0)) == 2 + 4 + 4 + 2 * 2


def test_no_gradient_no_path() -> None:
    """Layers between which no gradient goes back do not wait for each other in backward."""
    nodes = {"a": LAYER, "b": LAYER}
    waits, apart = ({"bytes": 0}, {"bytes": 0, "no_grad": True})
    bounds_s = [
        shortest_step_s(graph_of(nodes, [("a", "b", edge)], training=True), SLOW) for edge in (waits, apart)
    ]
    assert bounds_s == [2 + 4, 2 + 2]


def test_issued_before() -> None:
    """A layer begins when the layers before it and its first kernel are issued, and ends after its last."""
    short = {"forward_s": 1, "host_forward_s": 3}
    nodes = {"a": short, "b": short, "c": {"forward_s": 9, "host_forward_s": 2}}
    edges = [("a", "b", 0), ("b", "c", 0)]
    launching = replace(cluster_of(99), launch_s=1)
    assert step_s(nodes, *edges, cluster=launching) == 3 + 3 + 9  # the first kernel is issued at 0


@st.composite
def noted(draw: st.DrawFn) -> LayerGraph:
    """Graphs with outputs, losses, edges without gradients and a host, which takes long for some."""
    graph = draw(layer_graphs(pins=False))
    for number, node in enumerate(graph.nodes.values()):
        if node.get("kind") != "input":
            for phase in ("forward", "backward"):
                node[f"host_{phase}_s"] = draw(st.sampled_from([0.0, 0.25, 0.5, 3.0]))
            if draw(st.integers(0, 3)) == 0:
                node["returned"] = {str(number): draw(st.integers(0, 20))}
                node["losses"] = node["returned"] if draw(st.booleans()) else None
    for _, _, edge in graph.edges(data=True):
        if not edge.get("order_only") and draw(st.integers(0, 3)) == 0:
            edge["no_grad"] = True
    return graph


@given(
    noted(),
    clusters(memory=st.just(10**6)),
    st.sampled_from(["single", "m-etf", "chain", "random:1", "random:2"]),
    st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_no_plan_is_faster(graph: LayerGraph, cluster: Cluster, placer: str, stay: bool) -> None:
    """Whatever the graph and the placement."""
    cluster = replace(cluster, launch_s=0.25)
    graph = graph.noted(outputs="device") if stay else graph
    plan = place(graph, cluster, placer)
    assert simulate(plan).makespan_s >= shortest_step_s(graph, cluster) * (1 - 1e-9)
