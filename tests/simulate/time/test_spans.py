"""What the spans of every step must obey, from the definitions, on random plans."""

from collections.abc import Iterable
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.strategies import any_plan, clusters, layer_graphs
from simulate.times import check_times

from baechi.records import Cluster, LayerGraph, Plan, Span
from baechi.simulate import shortest_step_s, simulate

chances = st.builds(Random, st.integers(0, 10**6))
plans = st.builds(any_plan, layer_graphs(), clusters(), chances)


def one_after_the_other(spans: Iterable[Span]) -> bool:
    ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s))
    return all(before.end_s <= after.start_s for before, after in pairwise(ordered))


@given(plans)
@settings(max_examples=examples(200), deadline=None)
def test_devices(plan: Plan) -> None:
    """A device runs each of its layers once, in the plan's order, in backward in reverse."""
    spans = [span for span in simulate(plan).spans if span.kind == "compute"]
    for device in plan.cluster.names:
        forward = [s for s in spans if s.where == device and s.phase == "forward"]
        backward = [s for s in spans if s.where == device and s.phase == "backward"]
        assert tuple(span.layer for span in forward) == plan.order_on(device)
        assert tuple(s.layer for s in backward[::-1]) == plan.order_on(device) * plan.graph.training
        assert one_after_the_other(forward + backward)


@given(plans)
@settings(max_examples=examples(200), deadline=None)
def test_channels(plan: Plan) -> None:
    """A link carries one transfer at a time; with serial reception a device receives one at a time."""
    transfers = [span for span in simulate(plan).spans if span.kind == "transfer"]
    for channel in {span.where for span in transfers}:
        assert one_after_the_other(span for span in transfers if span.where == channel)
    for device in plan.cluster.names if plan.cluster.reception == "serial" else ():
        assert one_after_the_other(s for s in transfers if s.where.endswith(f">{device}"))


@given(plans, chances, st.booleans())
@settings(max_examples=examples(400), deadline=None)
def test_as_the_rules_read(plan: Plan, chance: Random, host: bool) -> None:
    """Everything runs as soon as the rules let it, and lasts as long; later only where the host is late."""
    for name in plan.graph if host else ():
        plan.graph.nodes[name]["host_forward_s"] = chance.choice([0, 0.1, 2])
        plan.graph.nodes[name]["host_backward_s"] = chance.choice([0, 0.1, 2])
    check_times(plan, simulate(plan))


@given(plans)
@settings(max_examples=examples(200), deadline=None)
def test_totals(plan: Plan) -> None:
    """The step ends with its last span, backward begins when forward is over, no bound is beaten.

    Bounds know of memory: a plan that takes more than there is may be faster.
    """
    timeline = simulate(plan)
    assert timeline.makespan_s == max((span.end_s for span in timeline.spans), default=0)
    forward = [span.end_s for span in timeline.spans if span.phase == "forward"]
    backward = [span.start_s for span in timeline.spans if span.phase == "backward"]
    assert max(forward, default=0) <= min(backward, default=float("inf"))
    assert timeline.counters["transfers"] == sum(span.kind == "transfer" for span in timeline.spans)
    roomy = plan.cluster.with_memory({name: 10**9 for name in plan.cluster.names})
    fits = all(timeline.peak_bytes[d.name] <= d.memory_bytes for d in plan.cluster.devices)
    for cluster in (roomy, plan.cluster) if fits else (roomy,):
        assert timeline.makespan_s >= shortest_step_s(plan.graph, cluster) * (1 - 1e-9)


@given(layer_graphs(), clusters(), st.integers(0, 99))
@settings(max_examples=examples(100), deadline=None)
def test_same_again(graph: LayerGraph, cluster: Cluster, seed: int) -> None:
    """The same plan gives the same timeline, also when it comes from a file."""
    plan = any_plan(graph, cluster, Random(seed))
    assert simulate(plan) == simulate(plan) == simulate(type(plan).from_json(plan.to_json()))
