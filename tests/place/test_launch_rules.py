"""Plans have orders in which their layers can launch, though not all of them can wait."""

from typing import Any

import torch
from order.interleaved import interleaved
from run.launched import runtime_of
from torch import Tensor, nn

import baechi


class Chains(nn.Module):
    """Two chains; the first one drops."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.c, self.layer = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), layer

    def forward(self, x: Tensor) -> Any:
        first = self.layer(self.a(x))
        return self.c(self.b(x)) + first


def order_of(layer: nn.Module, placer: str) -> list[str]:
    """The order of layers in a plan by a random placer, on one device of two."""
    cluster = baechi.Cluster.virtual(2)
    graph = baechi.profile(Chains(layer), torch.ones(2, 8), cluster=cluster, training=True, source="estimate")
    plan = baechi.place(graph, cluster, placer)
    return [name for name in plan.order if graph.costs(name).kind == "layer"]


def test_what_cannot_wait_comes_before_what_the_code_reaches_later() -> None:
    """A layer that draws or counts comes before what follows in the code; one that does neither may wait."""
    free = [order_of(nn.Tanh(), f"random:{seed}") for seed in range(12)]
    assert any(order.index("b") < order.index("layer") for order in free)
    for bound in (nn.Dropout(0.5), nn.BatchNorm1d(8)):
        for seed in range(12):
            order = order_of(bound, f"random:{seed}")
            assert order[:2] == ["a", "layer"]


def test_such_a_plan_runs_in_its_order() -> None:
    """Nothing has to launch before its turn."""
    cluster = baechi.Cluster.virtual(2)
    for seed in range(6):
        torch.manual_seed(0)
        model = Chains(nn.Dropout(0.5))
        graph = baechi.profile(model, torch.ones(2, 8), cluster=cluster, training=True, source="estimate")
        baechi.assign(model, baechi.place(graph, cluster, f"random:{seed}"), reorder="host")
        with cluster:
            model(torch.ones(2, 8)).sum().backward()
        assert runtime_of(model).forced == []


def test_an_order_of_the_users_is_kept_as_far_as_it_goes() -> None:
    """A plan made by hand says another order: the layer launches where the code reaches it."""
    cluster = baechi.Cluster.virtual(2)
    model = Chains(nn.Dropout(0.5))
    graph = baechi.profile(model, torch.ones(2, 8), cluster=cluster, training=True, source="estimate")
    where = {"": 0, "c": 1}
    baechi.assign(model, interleaved(graph, cluster, where, ["b", "a", "layer", "c"]), reorder="host")
    with cluster:
        model(torch.ones(2, 8))
    assert [one.name for one in runtime_of(model).forced] == ["layer"]
    assert runtime_of(model).launched[:2] == ["a", "layer"]
