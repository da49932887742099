"""What the spans of every step must obey, from the definitions, on random plans."""

from collections.abc import Iterable
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from place.strategies import clusters, layer_graphs
from place.test_ledgers import any_plan

from baechi.records import Cluster, LayerGraph, Plan, Span
from baechi.simulate import shortest_step_s, simulate

chances = st.builds(Random, st.integers(0, 10**6))
plans = st.builds(any_plan, layer_graphs(), clusters(), chances)
plans_of_single_tensors = st.builds(any_plan, layer_graphs(tensors=False), clusters(), chances)


def one_after_the_other(spans: Iterable[Span]) -> bool:
    ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s))
    return all(before.end_s <= after.start_s for before, after in pairwise(ordered))


@given(plans)
@settings(max_examples=200, deadline=None)
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
@settings(max_examples=200, deadline=None)
def test_channels(plan: Plan) -> None:
    """A link carries one transfer at a time; with serial reception a device receives one at a time."""
    transfers = [span for span in simulate(plan).spans if span.kind == "transfer"]
    for channel in {span.where for span in transfers}:
        assert one_after_the_other(span for span in transfers if span.where == channel)
    for device in plan.cluster.names if plan.cluster.reception == "serial" else ():
        assert one_after_the_other(s for s in transfers if s.where.endswith(f">{device}"))


@given(plans_of_single_tensors)
@settings(max_examples=200, deadline=None)
def test_dependencies(plan: Plan) -> None:
    """A layer starts after what it depends on, over devices after the transfer; backward mirrored."""
    timeline = simulate(plan)
    spans = {(s.layer, s.phase): s for s in timeline.spans if s.kind == "compute"}
    moves = {(s.layer, s.where, s.phase): s for s in timeline.spans if s.kind == "transfer"}
    for source, target, data in plan.graph.edges(data=True):
        here, there = plan.device_of.get(source, "host"), plan.device_of[target]
        travels = here != there and not data.get("order_only")
        if travels:
            assert moves[source, f"{here}>{there}", "forward"].end_s <= spans[target, "forward"].start_s
        if here != "host":
            assert spans[source, "forward"].end_s <= spans[target, "forward"].start_s
        if plan.graph.training and here != "host" and not data.get("order_only"):
            assert spans[target, "backward"].end_s <= spans[source, "backward"].start_s
            back = moves[source, f"{there}>{here}", "backward"] if travels else spans[target, "backward"]
            assert back.end_s <= spans[source, "backward"].start_s


@given(plans)
@settings(max_examples=200, deadline=None)
def test_totals(plan: Plan) -> None:
    """The step ends with its last span, backward begins when forward is over, no bound is beaten."""
    timeline = simulate(plan)
    assert timeline.makespan_s == max((span.end_s for span in timeline.spans), default=0)
    forward = [span.end_s for span in timeline.spans if span.phase == "forward"]
    backward = [span.start_s for span in timeline.spans if span.phase == "backward"]
    assert max(forward, default=0) <= min(backward, default=float("inf"))
    assert timeline.counters["transfers"] == sum(span.kind == "transfer" for span in timeline.spans)
    assert timeline.makespan_s >= shortest_step_s(plan.graph, plan.cluster) * (1 - 1e-9)


@given(layer_graphs(), clusters(), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_same_again(graph: LayerGraph, cluster: Cluster, seed: int) -> None:
    """The same plan gives the same timeline, also when it comes from a file."""
    plan = any_plan(graph, cluster, Random(seed))
    assert simulate(plan) == simulate(plan) == simulate(type(plan).from_json(plan.to_json()))
