"""Steps worked out by hand."""

import pytest
from place.graphs import BYTE_A_SECOND, FREE, cluster_of, graph_of

from baechi.errors import PlanError
from baechi.records import Cluster, Device, LayerGraph, Link, Plan, Span, Timeline
from baechi.simulate import simulate


def play(graph: LayerGraph, cluster: Cluster, order: str = "", **device_of: str) -> Timeline:
    return simulate(Plan(graph, cluster, device_of, tuple(order)))


def times(timeline: Timeline, kind: str = "compute") -> dict[tuple[str, str, str], tuple[float, float]]:
    spans = [span for span in timeline.spans if span.kind == kind]
    return {(span.layer, span.where, span.phase): (span.start_s, span.end_s) for span in spans}


def test_two_layers_one_link() -> None:
    """A layer, its output on the way, the next layer."""
    graph = graph_of({"a": {"forward_s": 1}, "b": {"forward_s": 2}}, [("a", "b", 4)])
    timeline = play(graph, cluster_of(99, 99), a="d0", b="d1")
    assert timeline.spans == (
        Span("compute", "a", "d0", 0, 1),
        Span("transfer", "a", "d0>d1", 1, 5, size_bytes=4),
        Span("compute", "b", "d1", 5, 7),
    )
    assert timeline.makespan_s == 7
    assert timeline.counters == {"transfers": 1, "transfer_bytes": 4}


def test_broadcast_travels_once() -> None:
    """A tensor with two readers on a device goes there once, and once to each other device."""
    edges = [("a", name, 2) for name in "bcd"]
    graph = graph_of({name: {"forward_s": 1} for name in "abcd"}, edges)
    timeline = play(graph, cluster_of(99, 99, 99), a="d0", b="d1", c="d1", d="d2")
    assert times(timeline, "transfer") == {
        ("a", "d0>d1", "forward"): (1, 3),
        ("a", "d0>d2", "forward"): (1, 3),
    }
    assert times(timeline)["c", "d1", "forward"] == (4, 5)


@pytest.mark.parametrize(("reception", "end_s"), [("serial", 8), ("free", 5)])
def test_reception(reception: str, end_s: float) -> None:
    """Two devices send to a third: one after the other, or at the same time."""
    graph = graph_of({name: {"forward_s": 1} for name in "abc"}, [("a", "c", 3), ("b", "c", 3)])
    cluster = cluster_of(99, 99, 99, reception=reception)
    assert play(graph, cluster, a="d0", b="d1", c="d2").makespan_s == end_s


def test_queue_on_a_link() -> None:
    """Tensors on one link travel one after the other, in the order in which they got ready."""
    graph = graph_of({name: {"forward_s": 1} for name in "abcd"}, [("a", "c", 5), ("b", "d", 1)])
    timeline = play(graph, cluster_of(99, 99, reception="free"), a="d0", b="d0", c="d1", d="d1")
    assert times(timeline, "transfer") == {
        ("a", "d0>d1", "forward"): (1, 6),
        ("b", "d0>d1", "forward"): (6, 7),
    }


def test_ready_together_first_needed_first() -> None:
    """Tensors that get ready together travel in the order in which the plan needs them."""
    nodes = {"a": {"forward_s": 1}, "late": {"forward_s": 1}, "soon": {"forward_s": 1}}
    edges = [("a", "late", {"bytes": 5, "tensor": "0"}), ("a", "soon", {"bytes": 1, "tensor": "1"})]
    plan = Plan(
        graph_of(nodes, edges),
        cluster_of(99, 99),
        {"a": "d0", "late": "d1", "soon": "d1"},
        ("a", "soon", "late"),
    )
    assert times(simulate(plan))["soon", "d1", "forward"] == (2, 3)


def test_upload() -> None:
    """Inputs come from the host, over its link."""
    graph = graph_of({"input:x": {"kind": "input"}, "a": {"forward_s": 1}}, [("input:x", "a", 4)])
    timeline = play(graph, cluster_of(99, links={("host", "d0"): BYTE_A_SECOND}), a="d0")
    assert timeline.spans[0] == Span("transfer", "input:x", "host>d0", 0, 4, size_bytes=4)
    assert timeline.makespan_s == 5


def test_order_without_data() -> None:
    """An edge that only orders is waited for, over devices too, and carries nothing."""
    graph = graph_of({"a": {"forward_s": 3}, "b": {"forward_s": 1}}, [("a", "b", {"order_only": True})])
    timeline = play(graph, cluster_of(99, 99), a="d0", b="d1")
    assert times(timeline)["b", "d1", "forward"] == (3, 4)
    assert timeline.counters["transfers"] == 0


def test_order_on_a_device_is_kept() -> None:
    """A device waits for the next layer of its order, also when a later one could run."""
    graph = graph_of({name: {"forward_s": 1} for name in "abc"}, [("a", "b", 4)])
    cluster = cluster_of(99, 99)
    assert play(graph, cluster, "abc", a="d0", b="d1", c="d1").makespan_s == 7
    assert play(graph, cluster, "acb", a="d0", b="d1", c="d1").makespan_s == 6


def test_speed_and_kind() -> None:
    """A number is divided by the device's speed, a time by kind is taken as it is."""
    devices = (Device("d0", kind="x", speed=4), Device("d1", kind="y", speed=4))
    graph = graph_of({"a": {"forward_s": 2}, "b": {"forward_s": {"y": 3}}}, [("a", "b", 0)])
    assert play(graph, Cluster(devices, link=FREE), a="d0", b="d1").makespan_s == 3.5


def test_backward() -> None:
    """Backward begins when forward is over, runs in reverse, and gradients take the way back."""
    layers = {"a": {"forward_s": 1, "backward_s": 3}, "b": {"forward_s": 2, "backward_s": 4}}
    graph = graph_of(layers, [("a", "b", 4)], training=True)
    cluster = cluster_of(99, 99, links={("d1", "d0"): Link(0.0, 2.0)})
    timeline = play(graph, cluster, a="d0", b="d1")
    assert times(timeline)["b", "d1", "backward"] == (7, 11)
    assert times(timeline, "transfer")["a", "d1>d0", "backward"] == (11, 13)
    assert times(timeline)["a", "d0", "backward"] == (13, 16)
    assert timeline.makespan_s == 16
    assert timeline.counters == {"transfers": 2, "transfer_bytes": 8}


def test_gradients_go_back_as_one() -> None:
    """The gradients of all readers on a device go back together, when the last is there."""
    layer = {"forward_s": 1, "backward_s": 1}
    graph = graph_of({name: dict(layer) for name in "abc"}, [("a", "b", 2), ("a", "c", 2)], training=True)
    timeline = play(graph, cluster_of(99, 99), a="d0", b="d1", c="d1")
    assert times(timeline)["c", "d1", "backward"] == (5, 6)
    assert times(timeline, "transfer")["a", "d1>d0", "backward"] == (7, 9)


def test_inputs_get_no_gradient() -> None:
    """Nothing goes back to the host."""
    graph = graph_of(
        {"input:x": {"kind": "input"}, "a": {"forward_s": 1}}, [("input:x", "a", 4)], training=True
    )
    assert play(graph, cluster_of(99), a="d0").counters["transfers"] == 1


def test_nothing_to_run() -> None:
    """An empty graph takes no time and no memory."""
    timeline = play(graph_of({"input:x": {"kind": "input"}}), cluster_of(99))
    counters = {"transfers": 0, "transfer_bytes": 0}
    assert timeline == Timeline((), 0.0, {"d0": 0}, counters, {"d0": ((0.0, 0),)})


def test_zero_times() -> None:
    """Layers and transfers of no time run too, in order."""
    graph = graph_of({name: {} for name in "abc"}, [("a", "b", 3), ("b", "c", 3)], training=True)
    timeline = play(graph, cluster_of(99, 99, link=FREE), a="d0", b="d1", c="d0")
    assert timeline.makespan_s == 0
    assert len(timeline.spans) == 6 + 4


def test_timeline_of_a_plan() -> None:
    """A plan simulates itself when it is asked."""
    plan = Plan(graph_of({"a": {"forward_s": 1}}), cluster_of(99), {"a": "d0"})
    assert plan.timeline == simulate(plan)


def test_order_that_is_none() -> None:
    """Layers that wait for each other are named. (A plan checks its order; this one is forced.)"""
    plan = Plan(graph_of({"a": {}, "b": {}}, [("a", "b", 1)]), cluster_of(99), {"a": "d0", "b": "d0"})
    object.__setattr__(plan, "order", ("b", "a"))
    with pytest.raises(
        PlanError, match="forward stops for ever at a, b: the plan's order is not topological"
    ):
        simulate(plan)
