"""The best plan of small graphs, against trying everything."""

from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given, settings
from place.graphs import cluster_of, graph_of
from place.strategies import clusters, layer_graphs

from baechi.errors import PlacementError
from baechi.place.evaluation import evaluate
from baechi.place.problem import Problem
from baechi.place.tight.exact import exact
from baechi.records import Cluster, LayerGraph, Link
from baechi.simulate import Rehearsal, shortest_step_s
from baechi.verbs.plans import place


def everything(problem: Problem, rehearse: Rehearsal) -> float | None:
    """The shortest step of all placements and all topological orders; None if none fits."""
    indexed, best = problem.indexed, None
    after = [
        {indexed.source[tensor] for tensor in reads if indexed.source[tensor] >= 0} | set(before)
        for reads, before in zip(indexed.reads, indexed.before, strict=True)
    ]
    layers = range(len(indexed))
    orders = [
        order
        for order in permutations(layers)
        if all(after[layer] <= set(order[:place]) for place, layer in enumerate(order))
    ]
    for device_of in product(problem.devices, repeat=len(indexed.members)):
        if any(pin not in (-1, device) for pin, device in zip(problem.pins, device_of, strict=True)):
            continue
        for order in orders:
            found = evaluate(problem, rehearse, device_of, order)
            if found is not None and (best is None or found.step_s < best):
                best = found.step_s
    return best


@given(layer_graphs(most=5, positive_times=True), clusters())
@settings(max_examples=60, deadline=None)
def test_nothing_is_better(graph: LayerGraph, cluster: Cluster) -> None:
    """No placement and no order is better, and none is found only where none fits."""
    cluster = Cluster(cluster.devices[:2], link=cluster.link, reception=cluster.reception)
    problem, rehearse = Problem(graph, cluster), Rehearsal(graph, cluster)
    best = everything(problem, rehearse)
    if best is None:
        with pytest.raises(PlacementError, match="no placement"):
            exact(problem, rehearse)
        return
    found = exact(problem, rehearse, enough_s=shortest_step_s(graph, cluster))
    assert found.step_s == pytest.approx(best, rel=1e-9)


def test_backward_does_not_wait_for_what_is_only_ordered() -> None:
    """Forward of `b` waits for `a`; backward of both runs at once, so two devices are better than one."""
    layer = {"forward_s": 1, "backward_s": 8}
    graph = graph_of({"a": layer, "b": layer}, [("a", "b", {"order_only": True})], training=True)
    problem, rehearse = Problem(graph, cluster_of(99, 99)), Rehearsal(graph, cluster_of(99, 99))
    assert exact(problem, rehearse).step_s == everything(problem, rehearse) == 1 + 1 + 8


@pytest.mark.parametrize("seed", range(12))
def test_placers_are_no_better(seed: int) -> None:
    """Seven layers on two devices: no placer beats the best plan, and `auto` is near it."""
    chance = Random(seed)
    names = [f"l{number}" for number in range(7)]
    pairs = [(a, b) for b in names for a in names if a < b and chance.random() < 0.3]
    edges = [(a, b, chance.choice([0, 1, 2])) for a, b in pairs]
    graph = graph_of({name: {"forward_s": chance.randint(1, 5)} for name in names}, edges)
    cluster = Cluster(cluster_of(10**9, 10**9).devices, link=Link(0.0, 1.0))
    found = exact(
        Problem(graph, cluster), Rehearsal(graph, cluster), enough_s=shortest_step_s(graph, cluster)
    )
    for placer in ("single", "m-topo", "m-etf", "m-sct", "chain"):
        assert found.step_s <= place(graph, cluster, placer).timeline.makespan_s * (1 + 1e-9)
    auto = place(graph, cluster, "auto").timeline.makespan_s
    assert found.step_s <= auto * (1 + 1e-9) and auto <= 1.05 * found.step_s


def test_too_large() -> None:
    """What would take too long is refused."""
    names = [f"l{number}" for number in range(8)]
    edges = [(a, b, 3) for place, a in enumerate(names) for b in names[place + 2 :: 3]]
    graph = graph_of({name: {"forward_s": 2} for name in names}, edges)
    with pytest.raises(ValueError, match="over 0 simulations"):
        exact(Problem(graph, cluster_of(999, 999)), Rehearsal(graph, cluster_of(999, 999)), most=0)
