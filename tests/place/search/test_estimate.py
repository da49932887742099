"""Estimates are what the simulator finds, sooner; and what is over a limit is known to be."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from benches.models.layered import cluster_for, layered
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import BYTE_A_SECOND, branches, cluster_of, graph_of
from place.strategies import clusters, layer_graphs

from baechi.place.bottom_level import bottom_levels
from baechi.place.problem import Problem
from baechi.place.search.changes import State, follow
from baechi.place.search.estimate import NEVER, Placement, Times, estimate
from baechi.place.search.room import Room
from baechi.place.search.tables import Tables
from baechi.records import Cluster, LayerGraph
from baechi.records.device import HostCosts
from baechi.simulate import Rehearsal

CHANCES = st.integers(0, 2**32).map(Random)
"""What draws numbers that are never equal, as `st.randoms` may let them be."""

HOST = HostCosts(
    layer_call_s=0.2, functional_op_s=0.1, transfer_s=0.15, gradient_transfer_s=0.25, backward_node_s=0.05
)
"""What the runtime takes; calls that wait are left out, since estimates leave them out."""


def uneven(graph: LayerGraph, chance: Random, *, host: bool) -> LayerGraph:
    """The graph with times and sizes that are never equal, so that nothing is ready at the same time."""
    changed = LayerGraph.from_networkx(graph)
    for name in changed:
        if changed.nodes[name].get("kind") == "input":
            continue
        for attribute in ("forward_s", "backward_s"):
            changed.nodes[name][attribute] = chance.uniform(0.5, 5)
            if host:
                changed.nodes[name][f"host_{attribute}"] = chance.uniform(0.4, 2)
    for _, _, data in changed.edges(data=True):
        if not data.get("order_only"):
            data["bytes"] = chance.randrange(1, 10**6)
    return changed


def both(
    graph: LayerGraph, cluster: Cluster, chance: Random, limit_s: float = NEVER, *, in_turn: bool = False
) -> tuple[float, float, list[int]]:
    """The estimate of a random placement, the simulator's step for its order, and the order."""
    problem = Problem(graph, cluster)
    groups = [chance.randrange(len(cluster)) for _ in problem.indexed.members]
    device_of = [groups[group] for group in problem.indexed.group_of]
    levels = np.array([] if in_turn else bottom_levels(problem, groups))
    placement = Placement(np.array(device_of, np.int64), levels, np.arange(len(device_of)))
    tables = Tables.of(problem)
    step_s = estimate(tables, Times.of(tables), placement, limit_s)
    order = placement.order.tolist()
    if step_s == NEVER:
        return step_s, NEVER, order
    place = [order.index(layer) for layer in range(len(order))]
    return step_s, Rehearsal(graph, cluster)(device_of, place)[0], order


@given(layer_graphs(pins=False), clusters(), CHANCES, st.booleans())
@settings(max_examples=examples(400), deadline=None)
def test_estimate_is_the_simulation(
    graph: LayerGraph, cluster: Cluster, chance: Random, in_turn: bool
) -> None:
    """Every layer once, each after those it depends on, and the same seconds, training or not.

    Where a device receives one thing at a time, the order of what comes may be another, seldom.
    """
    inputs = sum([graph.nodes[name].get("kind") == "input" for name in graph])
    graph = uneven(graph, chance, host=False)
    step_s, simulated_s, order = both(graph, cluster, chance, in_turn=in_turn)
    assert sorted(order) == list(range(len(graph) - inputs))
    assert step_s == pytest.approx(simulated_s, rel=1e-9 if cluster.reception == "free" else 0.1)


@given(layer_graphs(pins=False, tensors=False), clusters(), CHANCES, st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_busy_host(graph: LayerGraph, cluster: Cluster, chance: Random, own: bool) -> None:
    """A host that takes its time, in the code's order, in which no call waits; inputs stay on the host."""
    inputs = [name for name in graph if graph.nodes[name].get("kind") == "input"]
    graph = uneven(graph, chance, host=True)
    graph.remove_nodes_from(inputs)
    charged = replace(cluster, launch_s=0.3, reception="free", host=HOST if own else None)
    step_s, simulated_s, _ = both(graph, charged, chance, in_turn=True)
    assert step_s == pytest.approx(simulated_s, rel=1e-9)


@given(
    layer_graphs(pins=False),
    clusters(),
    CHANCES,
    st.floats(0.3, 1.7) | st.just(1 + 1e-6),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_limit(
    graph: LayerGraph, cluster: Cluster, chance: Random, part: float, host: bool, in_turn: bool
) -> None:
    """Within the limit the estimate is as without one; from it on, it is given up or is the same."""
    if host:
        graph, cluster = uneven(graph, chance, host=True), replace(cluster, launch_s=0.3, host=HOST)
    state = chance.getstate()
    whole_s, _, order = both(graph, cluster, chance, in_turn=in_turn)
    chance.setstate(state)
    limited_s, _, same = both(graph, cluster, chance, whole_s * part, in_turn=in_turn)
    if limited_s == NEVER:
        assert whole_s >= whole_s * part
    else:
        assert (limited_s, same) == (whole_s, order)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("reception", ["free", "serial"])
def test_a_larger_graph(training: bool, reception: str) -> None:
    """A hundred layers on three devices, by priority and in the code's order: what the simulator finds."""
    graph = layered(100, seed=3, travel=3, training=training)
    cluster = replace(cluster_for(graph, 3), reception=reception)
    for in_turn in (False, True):
        step_s, simulated_s, _ = both(graph, cluster, Random(0), in_turn=in_turn)
        assert step_s == pytest.approx(simulated_s, rel=1e-9)


def test_given_up_early() -> None:
    """Work that is left on a device ends an estimate before all layers have begun."""
    problem = Problem(branches(4, 6), cluster_of(999, 999))
    tables, layers = Tables.of(problem), len(problem.indexed)
    times, order = Times.of(tables), np.arange(layers)
    placement = Placement(np.zeros(layers, np.int64), np.zeros(layers), order)
    assert estimate(tables, times, placement, 20) == NEVER
    assert sum(times.ends_s > 0) < layers


def test_the_critical_chain() -> None:
    """What the long branch consists of, from the end; not the short branch."""
    graph = graph_of(
        {"a": {"forward_s": 1}, "long": {"forward_s": 9}, "short": {"forward_s": 2}, "b": {"forward_s": 1}},
        [("a", "long"), ("a", "short"), ("long", "b"), ("short", "b")],
    )
    problem = Problem(graph, cluster_of(999, 999, link=BYTE_A_SECOND))
    tables, device_of = Tables.of(problem), [0, 0, 1, 0]
    times, levels = Times.of(tables), np.array(bottom_levels(problem, device_of))
    now = Placement(np.array(device_of, np.int64), levels, np.arange(4))
    estimate(tables, times, now, NEVER)
    state = State.of(tables, times, Room.of(problem, device_of), now)
    chain = state.chain[: follow(tables, state)]
    assert [problem.indexed.names[layer] for layer in chain] == ["b", "long", "a"]


@given(layer_graphs(pins=False), clusters(), CHANCES)
@settings(max_examples=examples(200), deadline=None)
def test_orders(graph: LayerGraph, cluster: Cluster, chance: Random) -> None:
    """By priority, with a busy host that sends some tensors when they are asked for: makers come first."""
    graph, cluster = uneven(graph, chance, host=True), replace(cluster, launch_s=0.3, host=HOST)
    step_s, _, order = both(graph, cluster, chance)
    assert 0 <= step_s < NEVER
    for layer, followers in enumerate(Problem(graph, cluster).followers):
        assert all([order.index(layer) < order.index(follower) for follower in followers])
