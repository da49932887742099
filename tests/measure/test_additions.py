"""Gradients that stay: measured steps begin without any, so adding to them is estimated."""

import pytest

from baechi.measure import estimate_additions
from baechi.records import Device, LayerGraph

GPU = Device("cuda:0", "gpu", bytes_per_s=10.0)


def test_beside_measured_seconds() -> None:
    """By the device's rate where seconds are by kind; one launch a weight where the host's are known."""
    graph = LayerGraph(training=True, accumulate=True)
    times = {"backward_s": {"gpu": 1.0, "other": 2.0}, "host_backward_s": 0.5}
    graph.add_node("a", kind="layer", grad_bytes=20, grads=2, **times)
    graph.add_node("b", kind="layer", **times)
    estimate_additions(graph, [GPU], 0.125)
    assert graph.nodes["a"]["backward_s"] == {"gpu": 1.0 + 3 * 20 / 10.0, "other": 2.0}
    assert graph.nodes["a"]["host_backward_s"] == pytest.approx(0.5 + 2 * 0.125)
    assert {name: graph.nodes["b"][name] for name in times} == times


def test_on_this_machine() -> None:
    """Seconds of no kind are this machine's; the host's are not known, and stay so."""
    graph = LayerGraph(training=True, accumulate=True)
    graph.add_node("a", kind="layer", grad_bytes=2e9, grads=1, backward_s=1.0)
    estimate_additions(graph, [], 0.125)
    assert graph.nodes["a"]["backward_s"] > 1.0
    assert "host_backward_s" not in graph.nodes["a"]
