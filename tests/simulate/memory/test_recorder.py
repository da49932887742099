"""How full devices are over time: against the rules read as intervals, and by hand."""

from bisect import bisect_right
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import cluster_of, graph_of
from place.strategies import any_plan, clusters, layer_graphs
from simulate.oracle import Oracle

from baechi.records import Cluster, LayerGraph, Plan, Timeline
from baechi.simulate import simulate

chances = st.integers(0, 10**6)


@given(layer_graphs(positive_times=True, tensors=False), clusters(), chances)
@settings(max_examples=examples(200), deadline=None)
def test_as_the_rules_read(graph: LayerGraph, cluster: Cluster, seed: int) -> None:
    """Between any two changes a device holds what the intervals of the rules add up to."""
    plan = any_plan(graph, cluster, Random(seed))
    timeline = simulate(plan)
    oracle = Oracle(plan, timeline)
    oracle.add_layers()
    oracle.add_copies()
    changes = sorted({time_s for steps in timeline.live_bytes.values() for time_s, _ in steps})
    for before_s, after_s in pairwise(changes):
        middle_s = (before_s + after_s) / 2
        for device, steps in timeline.live_bytes.items():
            held = steps[bisect_right(steps, middle_s, key=lambda step: step[0]) - 1][1]
            live = [one.size for one in oracle.intervals[device] if one.start <= middle_s < one.end]
            assert held == sum(live)


@given(layer_graphs(), clusters(), chances)
@settings(max_examples=examples(200), deadline=None)
def test_the_most_is_the_peak(graph: LayerGraph, cluster: Cluster, seed: int) -> None:
    """Every device has a curve in order of time, whose highest point is its peak; files keep it."""
    timeline = simulate(any_plan(graph, cluster, Random(seed)))
    assert {d: max(size for _, size in steps) for d, steps in timeline.live_bytes.items()} == dict(
        timeline.peak_bytes
    )
    for steps in timeline.live_bytes.values():
        assert steps[0][0] == 0 and steps[-1][0] <= timeline.makespan_s
        assert all(before[0] <= after[0] for before, after in pairwise(steps))
    assert Timeline.from_json(timeline.to_json()) == timeline


def test_by_hand() -> None:
    """What is always there, kept and needed; gradients come in backward; the optimizer steps."""
    layer = {"forward_s": 1, "backward_s": 1, "param_bytes": 8, "grad_bytes": 8, "saved_bytes": 5}
    graph = graph_of({"a": {**layer, "temp_bytes": 2}, "b": {**layer}}, training=True, optimizer="adam")
    steps = simulate(Plan(graph, cluster_of(0), {"a": "d0", "b": "d0"})).live_bytes["d0"]
    assert steps == (
        (0, 48 + 5 + 2),
        (1, 48 + 10),
        (2, 48 + 10 + 8),
        (3, 48 + 5 + 16 + 2),
        (4, 64 + 3 * 8),
    )
