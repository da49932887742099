"""The least bytes that a placement takes are below every simulated peak."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import cluster_of, graph_of
from place.strategies import any_plan, clusters, layer_graphs
from place.tight.heavy import indexed_plan

from baechi.place.problem import Problem
from baechi.place.tight.least_bytes import least_bytes, least_peaks
from baechi.records import Cluster, LayerGraph
from baechi.simulate import simulate


@given(layer_graphs(), clusters(), st.integers(0, 10**6))
@settings(max_examples=examples(300), deadline=None)
def test_least_bytes(graph: LayerGraph, cluster: Cluster, seed: int) -> None:
    """No simulated peak is below what proofs and programs count on, whatever the plan."""
    plan, problem = any_plan(graph, cluster, Random(seed)), Problem(graph, cluster)
    where, _ = indexed_plan(problem, plan)
    least = least_peaks(
        problem, least_bytes(problem), [where[members[0]] for members in problem.indexed.members]
    )
    for peak, needed in zip(simulate(plan).peak_bytes.values(), least, strict=True):
        assert needed <= peak


def test_backward_begins_with_the_last_layer() -> None:
    """What autograd keeps for all layers is there while the backward of the last one runs."""
    rows = {name: {"output_bytes": 10, "saved_bytes": 10, "upstream_grad_bytes": 7} for name in "abc"}
    for edges, devices, needed in (
        ([("a", "b"), ("b", "c")], [0, 0, 0], [30 + 7, 0]),
        ([("a", "b"), ("b", "c")], [0, 0, 1], [27, 10 + 10 + 7]),  # with a copy of b's output
        ([("a", "b"), ("a", "c")], [0, 0, 0], [30, 0]),  # backward may begin with b or with c
    ):
        graph = graph_of(rows, [(*edge, 10) for edge in edges], training=True)
        problem = Problem(graph, cluster_of(100, 100))
        assert least_peaks(problem, least_bytes(problem), devices) == needed
