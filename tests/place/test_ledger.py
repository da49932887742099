"""The ledger against the simulator: a bound, and exact on one device."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import branches, chain, cluster_of, graph_of
from place.strategies import any_plan, clusters, layer_graphs

from baechi.place import find
from baechi.place.ledger import Ledger, open_ledger
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph, Plan
from baechi.simulate import simulate


def filled_ledger(plan: Plan) -> Ledger:
    """The ledger after all layers of a plan have run in its order."""
    problem = Problem(plan.graph, plan.cluster)
    index = {name: layer for layer, name in enumerate(problem.indexed.names)}
    firsts = [problem.indexed.names[members[0]] for members in problem.indexed.members]
    ledger = open_ledger(problem, [plan.cluster.names.index(plan.device_of[name]) for name in firsts])
    for name in plan.order:
        ledger.run(index[name])
    return ledger


@given(layer_graphs(), clusters(), st.integers(0, 10**6))
@settings(max_examples=examples(300), deadline=None)
def test_bound(graph: LayerGraph, cluster: Cluster, seed: int) -> None:
    """No simulated peak is above what the ledger says, whatever the plan."""
    plan = any_plan(graph, cluster, Random(seed))
    ledger = filled_ledger(plan)
    for device, peak in enumerate(simulate(plan).peak_bytes.values()):
        assert peak <= ledger.needed_bytes(device)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("graph", [chain, branches])
def test_exact_on_one_device(graph: type, training: bool) -> None:
    """Without transfers nothing is bounded: the ledger says what the simulator finds."""
    plan = any_plan(graph(training=training), cluster_of(10**6, reception="free"), Random(0))
    assert filled_ledger(plan).needed_bytes(0) == simulate(plan).peak_bytes["d0"]


def test_skip_connection_is_held() -> None:
    """An output that is read late is counted until then; the largest temporary alone is too low."""
    layer = {"output_bytes": 10}
    graph = graph_of(
        {name: dict(layer) for name in "abcd"},
        [("a", "b", 10), ("b", "c", 10), ("c", "d", 10), ("a", "d", 10)],
    )
    plan = Plan(graph, cluster_of(1000), dict.fromkeys("abcd", "d0"))
    assert filled_ledger(plan).needed_bytes(0) == 30 == simulate(plan).peak_bytes["d0"]


def test_view_holds_what_it_views() -> None:
    """A layer that hands on its input's memory keeps it alive as long as its own readers need it."""
    graph = graph_of(
        {"a": {"output_bytes": 10}, "view": {}, "b": {"output_bytes": 4}, "c": {"output_bytes": 1}},
        [("a", "view", 10), ("view", "b", 10), ("view", "c", 10)],
    )
    plan = Plan(graph, cluster_of(1000), dict.fromkeys(graph, "d0"))
    assert filled_ledger(plan).needed_bytes(0) == 15 == simulate(plan).peak_bytes["d0"]


def test_copy_is_counted_all_the_time() -> None:
    """A copy that waits for its reader may be there before, and after."""
    graph = graph_of(
        {"a": {"output_bytes": 5}, "big": {"temp_bytes": 50}, "b": {"output_bytes": 1}}, [("a", "b", 5)]
    )
    devices = {"a": "d0", "big": "d1", "b": "d1"}
    plan = Plan(graph, cluster_of(1000, 1000), devices)
    assert filled_ledger(plan).needed_bytes(1) == 56


def test_let_go_before_it_ran() -> None:
    """A placer may run the layer that lets go of an output before the one that makes it."""
    nodes = {
        "first": {"forward_s": 9, "output_bytes": 3},
        "slow": {"forward_s": 1, "output_bytes": 8},
        "view": {"forward_s": 1, "held_until": "last"},
        "last": {"forward_s": 1, "output_bytes": 1},
    }
    graph = graph_of(nodes, [("first", "slow", 3), ("slow", "view", 8)])
    plan = find("m-etf")(graph, cluster_of(1000, 1000))
    assert plan.order.index("last") < plan.order.index("slow")
    alone = Plan(graph, cluster_of(1000), dict.fromkeys(nodes, "d0"), plan.order)
    assert filled_ledger(alone).needed_bytes(0) == 12


def test_uncertain_copies_in_training() -> None:
    """In training a tensor costs its reader a copy and its maker the gradient that comes back."""
    graph = graph_of(
        {"a": {"saved_bytes": 7}, "b": {}, "c": {}}, [("a", "b", 5), ("a", "c", 5)], training=True
    )
    plan = Plan(graph, cluster_of(1000, 1000), {"a": "d0", "b": "d1", "c": "d1"})
    ledger = filled_ledger(plan)
    assert [ledger.needed_bytes(0), ledger.needed_bytes(1)] == [12, 5]
