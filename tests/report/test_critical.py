"""The critical path: by hand, and on random plans from its definition."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import FREE, cluster_of, graph_of
from place.strategies import any_plan, clusters, layer_graphs

import baechi
from baechi import zoo
from baechi.records import Plan
from baechi.report.critical import critical_path

plans = st.builds(any_plan, layer_graphs(), clusters(), st.builds(Random, st.integers(0, 10**6)))


def names(plan: Plan) -> list[tuple[str, str, str]]:
    return [(s.span.layer, s.span.where, s.cause) for s in critical_path(plan, plan.timeline)]


@given(plans)
@settings(max_examples=examples(300), deadline=None)
def test_it_is_the_step(plan: Plan) -> None:
    """One begins where the other ends, from the beginning to the end; with no host times nothing waits."""
    path = critical_path(plan, plan.timeline)
    assert sum(s.seconds for s in path) == pytest.approx(plan.timeline.makespan_s, abs=1e-12)
    assert not any(s.idle_s or s.issuing_s for s in path)
    assert all(a.span.end_s == pytest.approx(b.span.start_s, abs=1e-12) for a, b in pairwise(path))
    assert not path or (path[0].span.start_s == 0 and path[0].cause == "start")
    assert all(stretch.cause != "start" for stretch in path[1:])


def test_data_and_transfers() -> None:
    """An upload, a layer, its transfer, the layer that reads it."""
    graph = graph_of(
        {"input:x": {"kind": "input"}, "a": {"forward_s": 1}, "b": {"forward_s": 2}, "c": {"forward_s": 1}},
        [("input:x", "a", 2), ("a", "b", 4), ("a", "c", 0)],
    )
    plan = Plan(graph, cluster_of(9, 9), {"a": "d0", "b": "d1", "c": "d0"})
    assert names(plan) == [
        ("input:x", "host>d0", "start"),
        ("a", "d0", "data"),
        ("a", "d0>d1", "data"),
        ("b", "d1", "data"),
    ]


def test_queue() -> None:
    """A layer that reads nothing waits for its device; a transfer for the one before it."""
    graph = graph_of({n: {"forward_s": 1} for n in "abc"}, [("a", "c", 0)])
    plan = Plan(graph, cluster_of(9, link=FREE), dict.fromkeys("abc", "d0"), ("a", "b", "c"))
    assert names(plan) == [("a", "d0", "start"), ("b", "d0", "queue"), ("c", "d0", "queue")]
    graph = graph_of({"a": {}, "b": {}, "c": {}, "d": {"forward_s": 1}}, [("a", "c", 8), ("b", "d", 8)])
    where = {"a": "d0", "b": "d1", "c": "d2", "d": "d2"}
    path = names(Plan(graph, cluster_of(9, 9, 9), where))
    assert path[-2:] == [("b", "d1>d2", "queue"), ("d", "d2", "data")]
    path = names(Plan(graph, cluster_of(9, 9, 9, reception="free"), where))
    assert path[-2:] == [("b", "d1>d2", "data"), ("d", "d2", "data")]


def test_turn_and_gradients() -> None:
    """Backward begins when all forward is over, and goes back over the links."""
    graph = graph_of(
        {
            "a": {"forward_s": 1, "backward_s": 2},
            "b": {"forward_s": 1, "backward_s": 3},
            "c": {"forward_s": 9},
        },
        [("a", "b", 4)],
        training=True,
    )
    plan = Plan(graph, cluster_of(9, 9, 9), {"a": "d0", "b": "d1", "c": "d2"})
    assert names(plan) == [
        ("c", "d2", "start"),
        ("b", "d1", "turn"),
        ("a", "d1>d0", "data"),
        ("a", "d0", "data"),
    ]


def test_waits_for_the_host() -> None:
    """A kernel that the host had not issued, and one that ran no faster than it issued.

    The step begins when the first kernel has been issued; of four the last one takes a quarter.
    """
    graph = graph_of(
        {"a": {"forward_s": 1, "host_forward_s": 4}, "b": {"forward_s": 9, "host_forward_s": 2}},
        [("a", "b", 0)],
    )
    plan = Plan(graph, cluster_of(9, link=FREE, launch_s=1), {"a": "d0", "b": "d0"})
    first, second = critical_path(plan, plan.timeline)
    assert (first.idle_s, first.issuing_s, first.seconds) == (0, 2.25, 1)
    assert (second.idle_s, second.issuing_s, second.seconds) == (0.75, 0, 9)
    assert (first.host_s, second.host_s) == (2.25, 0.75)


def test_a_measured_step() -> None:
    """What was measured has a critical path too: from an upload or a layer to its last span."""
    model, inputs = zoo.transformer("small")
    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(model, inputs, cluster=cluster, placer="random:0")
    with cluster:
        model(*inputs).sum().backward()
        measured = baechi.last_step(model)
    path = critical_path(baechi.plan_of(model), measured)
    ends = [span.end_s for span in measured.spans if span.phase != "other"]
    assert path[-1].span.end_s == max(ends) and path[0].cause == "start"
    total = sum(s.seconds + s.issuing_s + s.idle_s for s in path)
    assert total == pytest.approx(measured.makespan_s)  # what is between forward and backward has no part
    assert {"data", "turn"} <= {s.cause for s in path}
