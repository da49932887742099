"""The least bytes that a placement takes are below every simulated peak."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from place.strategies import any_plan, clusters, layer_graphs
from place.tight.heavy import indexed_plan

from baechi.place.problem import Problem
from baechi.place.tight.least_bytes import least_bytes, least_peaks
from baechi.records import Cluster, LayerGraph
from baechi.simulate import simulate


@given(layer_graphs(), clusters(), st.integers(0, 10**6))
@settings(max_examples=300, deadline=None)
def test_least_bytes(graph: LayerGraph, cluster: Cluster, seed: int) -> None:
    """No simulated peak is below what proofs and programs count on, whatever the plan."""
    plan, problem = any_plan(graph, cluster, Random(seed)), Problem(graph, cluster)
    where, _ = indexed_plan(problem, plan)
    least = least_peaks(
        problem, least_bytes(problem), [where[members[0]] for members in problem.indexed.members]
    )
    for peak, needed in zip(simulate(plan).peak_bytes.values(), least, strict=True):
        assert needed <= peak
