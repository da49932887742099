"""Peaks worked out by hand, and by another reading of the rules on random plans."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import cluster_of, graph_of
from place.strategies import any_plan, clusters, layer_graphs
from simulate.oracle import peaks_from_spans

from baechi.records import Cluster, LayerGraph, Plan
from baechi.simulate import simulate


def peaks(graph: LayerGraph, devices: int = 1, optimizer: str | None = None, **device_of: str) -> list[int]:
    plan = Plan(graph, cluster_of(*[0] * devices), device_of)
    return list(simulate(plan, optimizer=optimizer).peak_bytes.values())


@given(
    layer_graphs(positive_times=True),
    clusters(),
    st.integers(0, 10**6),
    st.sampled_from([None, "momentum", "Adam", "adagrad"]),
)
@settings(max_examples=examples(400), deadline=None)
def test_as_the_rules_read(graph: LayerGraph, cluster: Cluster, seed: int, optimizer: str | None) -> None:
    """The peaks are those that the rules give when applied to the spans, one interval each."""
    graph.graph["optimizer"] = optimizer
    plan = any_plan(graph, cluster, Random(seed))
    timeline = simulate(plan)
    assert dict(timeline.peak_bytes) == peaks_from_spans(plan, timeline)


@given(layer_graphs(), clusters(), st.integers(0, 10**6))
@settings(max_examples=examples(300), deadline=None)
def test_no_time(graph: LayerGraph, cluster: Cluster, seed: int) -> None:
    """Where things take no time, the peaks are not below what has to be there."""
    plan = any_plan(graph, cluster, Random(seed))
    timeline = simulate(plan)
    least = peaks_from_spans(plan, timeline)
    assert all(least[device] <= peak for device, peak in timeline.peak_bytes.items())


def test_inference_on_one_device() -> None:
    """Weights, the output that is read, the output that is made, and what is needed to make it."""
    layer = {"forward_s": 1, "param_bytes": 10, "buffer_bytes": 1, "output_bytes": 5, "temp_bytes": 2}
    graph = graph_of({name: dict(layer) for name in "abc"}, [("a", "b", 5), ("b", "c", 5)])
    assert peaks(graph, a="d0", b="d0", c="d0") == [33 + 5 + 5 + 2]


def test_unused_output_stays() -> None:
    """What nobody reads is returned to the caller."""
    graph = graph_of({name: {"forward_s": 1, "output_bytes": 5} for name in "abc"})
    assert peaks(graph, a="d0", b="d0", c="d0") == [15]


def test_sent_output_is_held_until_it_arrived() -> None:
    """The next layer meets the output that is still on its way; the copy counts from its start."""
    nodes = {"a": {"forward_s": 1, "output_bytes": 4}, "next": {"forward_s": 1, "temp_bytes": 3}, "b": {}}
    graph = graph_of(nodes, [("a", "b", 4)])
    assert peaks(graph, 2, a="d0", next="d0", b="d1") == [7, 4]


def test_copy_is_freed_in_inference() -> None:
    """A copy is freed when its last reader has ended."""
    nodes = {"a": {"output_bytes": 4}, "b": {"forward_s": 1, "output_bytes": 1}}
    graph = graph_of(nodes | {"c": {"forward_s": 1, "temp_bytes": 4}}, [("a", "b", 4), ("b", "c", 1)])
    assert peaks(graph, 2, a="d0", b="d1", c="d1") == [4, 5]


def test_copy_of_a_slice() -> None:
    """The copy of a slice takes more memory than travels."""
    graph = LayerGraph()
    graph.add_node("a", output_bytes=1000, forward_s=1.0)
    graph.add_node("b", output_bytes=3, forward_s=1.0)
    graph.add_edge("a", "b", bytes=10, tensor="0", copies={"0": 910})
    assert peaks(graph, 2, a="d0", b="d1") == [1000, 913]


def test_copies_live_as_long_as_what_they_copy() -> None:
    """The batch stays to the end, and so do its copies; other copies wait for the last reader anywhere."""
    nodes = {"a": {"forward_s": 1}, "b": {"forward_s": 1, "temp_bytes": 8}}
    graph = graph_of({"input:x": {"kind": "input"}, **nodes}, [("input:x", "a", 4), ("a", "b", 0)])
    assert peaks(graph, 2, a="d0", b="d1") == [4, 8]
    nodes = {"a": {"output_bytes": 4}, "b": {"forward_s": 1}, "late": {"forward_s": 1, "temp_bytes": 8}}
    edges = [("a", "b", 4), ("b", "late", 0), ("a", "slow", 4)]
    graph = graph_of(nodes | {"slow": {"forward_s": 9}}, edges)
    assert peaks(graph, 2, a="d0", b="d1", late="d1", slow="d0") == [4, 12]


def test_variables_hold() -> None:
    """What a variable holds is freed when the layer ends during which it is let go."""
    nodes = {name: {"forward_s": 1, "output_bytes": 4} for name in "abc"}
    edges = [("a", "b", 4), ("b", "c", 4)]
    assert peaks(graph_of(nodes, edges), a="d0", b="d0", c="d0") == [8]
    nodes["a"]["held_until"] = "c"  # type: ignore[assignment]
    assert peaks(graph_of(nodes, edges), a="d0", b="d0", c="d0") == [12]


def test_variables_gone_before() -> None:
    """A layer that runs after its variable is gone holds its output while it runs, and no less."""
    nodes = {"a": {"forward_s": 1, "output_bytes": 4, "held_until": "b"}, "b": {"forward_s": 1}}
    nodes["c"] = {"forward_s": 1, "output_bytes": 3}
    plan = Plan(graph_of(nodes), cluster_of(9), dict.fromkeys("abc", "d0"), ("b", "a", "c"))
    assert simulate(plan).peak_bytes == {"d0": 4}


def test_two_copies_wait() -> None:
    """Copies that arrive early are there while the device is still busy with something else."""
    nodes = {"busy": {"forward_s": 9, "temp_bytes": 7}, "a": {"output_bytes": 2}, "b": {"output_bytes": 3}}
    graph = graph_of(nodes | {"c": {}}, [("a", "c", 2), ("b", "c", 3)])
    assert peaks(graph, 2, busy="d1", a="d0", b="d0", c="d1") == [5, 12]


def test_training_on_one_device() -> None:
    """Saved outputs go as gradients of weights come; the last backward finds all of these."""
    layer = {
        "param_bytes": 10, "grad_bytes": 10, "output_bytes": 5, "saved_bytes": 5,
        "upstream_grad_bytes": 5, "temp_bytes": 2, "forward_s": 1, "backward_s": 1,
    }  # fmt: skip
    graph = graph_of({name: dict(layer) for name in "abc"}, [("a", "b", 5), ("b", "c", 5)], training=True)
    on_one = {name: "d0" for name in "abc"}
    assert peaks(graph, **on_one) == [3 * (10 + 10) + 5 + 5 + 2]
    assert peaks(graph, optimizer="momentum", **on_one) == [3 * (10 + 10 + 10) + 5 + 5 + 2]
    small = graph_of(
        {n: {**layer, "grad_bytes": 1} for n in "abc"}, [("a", "b", 5), ("b", "c", 5)], training=True
    )
    assert peaks(small, **on_one) == [3 * (10 + 5) + 1 + 5 + 2]


def test_the_step_of_the_optimizer() -> None:
    """When the optimizer steps, what autograd kept is gone; its temporary tensors are there, for all
    weights of the device at once, or three for one weight at a time."""
    layer = {"param_bytes": 10, "grad_bytes": 10, "saved_bytes": 5}
    many = graph_of({name: dict(layer) for name in "abc"}, training=True)
    assert peaks(many, optimizer="adam", **{name: "d0" for name in "abc"}) == [3 * 40 + 3 * 10]
    assert peaks(graph_of({"a": layer}, training=True), optimizer="adam", a="d0") == [40 + 2 * 10]


def test_saved_is_freed_in_backward() -> None:
    """What backward has used is given back: a layer that needs much at the end finds room."""
    nodes = {
        "a": {"saved_bytes": 1, "temp_bytes": 0, "upstream_grad_bytes": 9},
        "b": {"saved_bytes": 8, "temp_bytes": 0, "upstream_grad_bytes": 1},
    }
    assert peaks(graph_of(nodes, [("a", "b", 1)], training=True), a="d0", b="d0") == [1 + 9]


def test_copies_stay_in_training() -> None:
    """A copy is there until its gradient has gone back; the gradient counts where it arrives."""
    nodes = {
        "a": {"forward_s": 1, "backward_s": 1, "saved_bytes": 4, "upstream_grad_bytes": 4},
        "b": {"forward_s": 1, "backward_s": 1},
        "c": {"forward_s": 1, "backward_s": 1, "temp_bytes": 7},
    }
    graph = graph_of(nodes, [("a", "b", 4), ("b", "c", 0)], training=True)
    assert peaks(graph, 2, a="d0", b="d1", c="d1") == [4 + 4, 4 + 7]


def test_gradients_that_wait() -> None:
    """Gradients from other devices wait for the layer they are for, while others run before it."""
    nodes = {
        "a": {"forward_s": 1, "backward_s": 1, "upstream_grad_bytes": 5},
        "far": {"forward_s": 1, "backward_s": 1},
        "near": {"forward_s": 99, "backward_s": 99, "temp_bytes": 3},
    }
    graph = graph_of(nodes, [("a", "far", 5), ("a", "near", 0)], training=True)
    assert peaks(graph, 2, a="d0", far="d1", near="d0") == [3 + 5, 5]


def test_optimizer_of_the_graph() -> None:
    """The optimizer noted on the graph counts unless another is named."""
    graph = graph_of({"a": {"grad_bytes": 10}}, training=True, optimizer="adam")
    assert peaks(graph, a="d0") == [30 + 20]
    assert peaks(graph, optimizer="sgd", a="d0") == [10]
