"""What dependencies alone would take."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import FREE, cluster_of, graph_of
from place.strategies import any_plan, clusters, layer_graphs

from baechi.records import Plan
from baechi.report.dependencies import dependencies_s

plans = st.builds(any_plan, layer_graphs(), clusters(), st.builds(Random, st.integers(0, 10**6)))


@given(plans)
@settings(max_examples=examples(300), deadline=None)
def test_dependencies_alone(plan: Plan) -> None:
    """No step is shorter than its dependencies."""
    assert dependencies_s(plan) <= plan.timeline.makespan_s * (1 + 1e-9)


def test_dependencies_by_hand() -> None:
    """The longer branch, on the device that it is on; in training there and back."""
    layer = {"forward_s": 2, "backward_s": 4}
    graph = graph_of({n: layer for n in "abcd"}, [("a", "b"), ("b", "c"), ("a", "d")], training=True)
    plan = Plan(graph, cluster_of(9, 9, speeds=(1, 2)), {"a": "d0", "b": "d0", "c": "d1", "d": "d1"})
    assert dependencies_s(plan) == (2 + 2 + 1) + (4 + 4 + 2)


def test_a_device_for_each_layer_and_free_links() -> None:
    """Where nothing queues and nothing takes time to travel, the step is its dependencies."""
    graph = graph_of({n: {"forward_s": 2} for n in "abcd"}, [("a", "b", 9), ("b", "c", 9), ("a", "d", 9)])
    plan = Plan(graph, cluster_of(*[99] * 4, link=FREE), {n: f"d{i}" for i, n in enumerate("abcd")})
    assert dependencies_s(plan) == plan.timeline.makespan_s == 6
