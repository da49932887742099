"""Layers that are skipped, and weights that nothing reads, hold up no layer."""

from typing import Any

import pytest
from order.interleaved import distribute
from run.launch.equal_layers import Net, X
from run.launched import launched_on, runtime_of
from torch import Tensor, nn

import baechi
from baechi.order import LaunchOrder, waiting_layers


def test_a_skipped_layer_in_a_model() -> None:
    """A branch that is not taken holds up nobody until the end of the step."""

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        k = self.b(x) if self.taken else x
        result: Tensor = self.d(h + k + self.c(x))
        return result

    model = Net(code)
    model.taken = True  # type: ignore[assignment]
    with distribute(model, X, {"a": 0, "b": 0, "c": 0, "d": 1}, "bacd"):
        model.taken = False  # type: ignore[assignment]
        model(**X)
    assert launched_on(model, "cpu:0") == ["a", "c"]
    assert runtime_of(model).forced == []


@pytest.mark.parametrize("first", ["unused", "a"])
def test_unused_weights_hold_nobody(first: str) -> None:
    """A node for weights that nothing reads never launches; no layer waits for its turn."""

    def code(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.c(self.b(self.a(x)))
        return result

    model = Net(code, "abc")
    model.unused = nn.Linear(8, 8)
    graph = baechi.profile(model, X, cluster=baechi.Cluster.virtual(1))
    assert graph.nodes["unused"]["unread"]
    cluster = baechi.Cluster.virtual(2)
    rest = [name for name in ("a", "b", "c") if name != first]
    order = (first, *rest) if first == "unused" else (first, "unused", *rest)
    device_of = dict.fromkeys("abc", "cpu:0") | {"unused": "cpu:0", "c": "cpu:1"}
    plan = baechi.Plan(graph, cluster, device_of, order)
    assert waiting_layers(LaunchOrder.of(plan)) == []
    baechi.assign(model, plan)
    with cluster:
        model(**X)
    assert runtime_of(model).counts.get("deferred", 0) == 0
