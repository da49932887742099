"""Where the host waits for a value, what the code calls later follows what made it."""

import networkx as nx
import torch
from torch import Tensor, nn

import baechi
from baechi import Cluster, LayerGraph, Plan
from baechi.simulate import simulate


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
    return baechi.profile(model, (torch.randn(4, 8),), cluster=Cluster.virtual(1), source="estimate")


def orders(graph: LayerGraph) -> set[tuple[str, str]]:
    return {(a, b) for a, b, data in graph.edges(data=True) if data.get("order_only")}


def test_what_comes_after_a_wait_follows_it() -> None:
    """The first node after it; what that one leads to follows by itself."""
    graph = graph_of(Net(waits=True))
    assert orders(graph) == {("glue:/gt#0", "b")}
    assert graph.edge_costs("glue:/gt#0", "b").host_waits


def test_without_a_wait_branches_are_free() -> None:
    assert orders(graph_of(Net(waits=False))) == set()


class Asks(nn.Module):
    """A layer that asks for a value between its kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.weight
        scale = 2.0 if bool(x.detach().sum() > 0) else 1.0
        return scale * x.tanh()


def test_a_layer_says_after_which_of_its_kernels_the_host_waits() -> None:
    """A product, a sum, a comparison, what brings the value; then two more."""
    costs = graph_of(nn.Sequential(nn.Linear(8, 8), Asks(), nn.Linear(8, 8))).costs("1")
    assert list(costs.awaited_after) == [4] and costs.kernels == 6
    after = graph_of(Net(waits=True)).costs("glue:/gt#0")
    assert after.awaited_before == "b" and not after.awaited_after


class LooksBack(nn.Module):
    """The code knows a value of `a`, then one of `b`, and looks at that of `a` again before it calls `c`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        sign = bool(first.detach()[0, 0] > 0)
        second = self.b(x)
        sign ^= bool(second.detach()[0, 0] > 0)
        sign ^= bool(first.detach()[0, 0])
        return first + second + (1.0 + sign) * self.c(x)


def test_an_older_value_is_looked_at_again() -> None:
    """`c` follows `b`, too, though the last wait was for `a`: an order with `c` first would never end."""
    graph = graph_of(LooksBack())
    waits = nx.DiGraph(graph.edges)
    assert "b" in nx.ancestors(waits, "c") and "a" in nx.ancestors(waits, "b")


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


def test_the_simulator_lets_it_wait() -> None:
    """On two devices, `b` starts once the host has read the value, though its input was there before."""
    graph = graph_of(Net(waits=True))
    on_second = {"b", "c", "glue:/mul#0", "glue:/add#0"}
    nodes = [name for name, data in graph.nodes(data=True) if data["kind"] != "input"]
    where = {name: "cpu:1" if name in on_second else "cpu:0" for name in nodes}
    timeline = simulate(Plan(graph, Cluster.virtual(2, memory="1GiB"), where))
    forward = {
        span.layer: span for span in timeline.spans if (span.kind, span.phase) == ("compute", "forward")
    }
    assert forward["b"].start_s >= forward["glue:/gt#0"].end_s
