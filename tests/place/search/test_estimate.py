"""Estimates are what the simulator finds, sooner; and what is over a limit is known to be."""

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import branches, cluster_of
from place.strategies import clusters, layer_graphs

from baechi.place.bottom_level import bottom_levels
from baechi.place.problem import Problem
from baechi.place.search.estimating.course import NEVER, Course
from baechi.place.search.estimating.differences import anew
from baechi.place.search.estimating.dispatch import dispatch
from baechi.place.search.estimating.estimate import estimate
from baechi.place.search.estimating.tables import Tables
from baechi.records import Cluster, LayerGraph
from baechi.simulate import Rehearsal


def uneven(graph: LayerGraph, chance: Random, *, host: bool) -> LayerGraph:
    """The graph with times and sizes that are never equal, so that nothing is ready at the same time."""
    changed = LayerGraph.from_networkx(graph)
    for name in changed:
        if changed.nodes[name].get("kind") == "input":
            continue
        for attribute in ("forward_s", "backward_s"):
            changed.nodes[name][attribute] = chance.uniform(0.5, 5)
            if host:
                changed.nodes[name][f"host_{attribute}"] = chance.uniform(0.1, 2)
    for _, _, data in changed.edges(data=True):
        if not data.get("order_only"):
            data["bytes"] = chance.randrange(1, 10**6)
    return changed


def estimated(
    problem: Problem, device_of: list[int], priority: list[float], limit_s: float, *, in_turn: bool = False
) -> tuple[float, list[int]]:
    """An estimate, and the order that comes with it."""
    tables, order = Tables.of(problem, in_turn=in_turn), np.empty(len(device_of), np.int64)
    on, urgency = np.array(device_of, np.int64), np.array(priority)
    step_s = estimate(tables, Course.of(tables), on, urgency, limit_s, order, anew(tables))
    return step_s, order.tolist()


def both(
    graph: LayerGraph, cluster: Cluster, chance: Random, limit_s: float = NEVER, *, in_turn: bool = False
) -> tuple[float, float, list[int]]:
    """The estimate of a random placement, the simulator's step for its order, and the order."""
    problem = Problem(graph, cluster)
    groups = [chance.randrange(len(cluster)) for _ in problem.indexed.members]
    device_of = [groups[group] for group in problem.indexed.group_of]
    levels = bottom_levels(problem, groups)
    step_s, order = estimated(problem, device_of, levels, limit_s, in_turn=in_turn)
    if step_s == NEVER:
        return step_s, NEVER, order
    place = [order.index(layer) for layer in range(len(order))]
    return step_s, Rehearsal(graph, cluster)(device_of, place)[0], order


@given(layer_graphs(pins=False), clusters(), st.randoms(use_true_random=False))
@settings(max_examples=examples(300), deadline=None)
def test_estimate_is_the_simulation(graph: LayerGraph, cluster: Cluster, chance: Random) -> None:
    """Every layer once, each after those it depends on, and the same seconds, training or not."""
    inputs = sum([graph.nodes[name].get("kind") == "input" for name in graph])
    graph = uneven(graph, chance, host=False)
    step_s, simulated_s, order = both(graph, cluster, chance)
    assert sorted(order) == list(range(len(graph) - inputs))
    if inputs < 2:  # several uploads are ready at the same time: at the beginning
        assert abs(step_s - simulated_s) <= 1e-9 * max(1.0, simulated_s)


@given(layer_graphs(pins=False), clusters(), st.randoms(use_true_random=False))
@settings(max_examples=examples(200), deadline=None)
def test_in_the_code_s_order(graph: LayerGraph, cluster: Cluster, chance: Random) -> None:
    """Layers by number, and the same seconds as the simulator's for that order."""
    inputs = sum([graph.nodes[name].get("kind") == "input" for name in graph])
    graph = uneven(graph, chance, host=False)
    step_s, simulated_s, order = both(graph, cluster, chance, in_turn=True)
    assert order == list(range(len(graph) - inputs))
    if inputs < 2:
        assert abs(step_s - simulated_s) <= 1e-9 * max(1.0, simulated_s)


@given(layer_graphs(pins=False), clusters(), st.randoms(use_true_random=False))
@settings(max_examples=examples(100), deadline=None)
def test_a_busy_host(graph: LayerGraph, cluster: Cluster, chance: Random) -> None:
    """A host that takes its time; on one device, where it is late with no transfer, it is the simulation."""
    inputs = sum([graph.nodes[name].get("kind") == "input" for name in graph])
    graph = uneven(graph, chance, host=True)
    one = Cluster(cluster.devices[:1], link=cluster.link, reception=cluster.reception)
    step_s, simulated_s, _ = both(graph, one, chance, in_turn=chance.random() < 0.5)
    if not inputs:
        assert abs(step_s - simulated_s) <= 1e-9 * max(1.0, simulated_s)


@given(
    layer_graphs(pins=False),
    clusters(),
    st.randoms(use_true_random=False),
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
        graph, cluster = uneven(graph, chance, host=True), replace(cluster, launch_s=0.3)
    state = chance.getstate()
    whole_s, _, order = both(graph, cluster, chance, in_turn=in_turn)
    chance.setstate(state)
    limited_s, _, same = both(graph, cluster, chance, whole_s * part, in_turn=in_turn)
    if limited_s == NEVER:
        assert whole_s >= whole_s * part
    else:
        assert (limited_s, same) == (whole_s, order)


def test_given_up_early() -> None:
    """Work that is left on a device ends an estimate before all layers have started."""
    problem = Problem(branches(4, 6), cluster_of(999, 999))
    layers = len(problem.indexed)
    on, priority, order = np.zeros(layers, np.int64), np.zeros(layers), np.empty(layers, np.int64)
    tables = Tables.of(problem)
    step_s, started = dispatch(tables, Course.of(tables), on, priority, 20, order, anew(tables))
    assert step_s == NEVER
    assert started < layers
