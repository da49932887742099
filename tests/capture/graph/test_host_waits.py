"""Where the host waits for a value, what the code calls later follows what made it."""

import torch
from torch import Tensor, nn

import baechi
from baechi import Cluster, LayerGraph


class Net(nn.Module):
    """Two branches; the code of `b` begins once the host knows a value of `a`, or does not wait."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__()
        self.waits = waits
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        left = self.a(x)
        scale = 2.0 if self.waits and bool(left.detach().sum() > 0) else 1.0
        right = self.b(x)
        return left + scale * self.c(right)


def graph_of(model: nn.Module) -> LayerGraph:
    return baechi.profile(model, (torch.randn(4, 8),), cluster=Cluster.virtual(1), training=True)


def orders(graph: LayerGraph) -> set[tuple[str, str]]:
    return {(a, b) for a, b, data in graph.edges(data=True) if data.get("order_only")}


def test_what_comes_after_a_wait_follows_it() -> None:
    """The first node after it; what that one leads to follows by itself."""
    assert orders(graph_of(Net(waits=True))) == {("glue:/gt#0", "b")}


def test_without_a_wait_branches_are_free() -> None:
    assert orders(graph_of(Net(waits=False))) == set()


class Masked(nn.Module):
    """A mask's count is a shape: the host waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        left = self.a(x)
        chosen = left[left.detach() > 0]
        return chosen.sum() + self.b(x).sum()


def test_a_mask_waits_and_what_it_takes_is_the_mask() -> None:
    graph = graph_of(Masked())
    assert {b for _, b in orders(graph)} == {"b"}


def test_a_plan_takes_the_wait_into_account() -> None:
    """Two devices gain nothing for a branch that begins after the other is read."""
    cluster = Cluster.virtual(2, link="nvlink")
    steps = {}
    for waits in (False, True):
        graph = graph_of(Net(waits=waits))
        plan = baechi.place(graph, cluster, {"a": 0, "b": 1, "c": 1})
        timeline = baechi.simulate(graph, plan, cluster, training=False)
        steps[waits] = timeline
        starts = {task.name: task.start_s for task in timeline.tasks if task.name in ("a", "b")}
        assert (starts["b"] > starts["a"]) is waits
