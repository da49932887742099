"""Functional ops run where the plan places them, wherever the code is when it calls them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from run.launched import runtime_of
from same import ROUNDING, assert_same, step
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import baechi
from baechi.run.step.call_sites import moves_of

pytestmark = pytest.mark.default_cases(2)

Code = Callable[[Any, Tensor], Tensor]


class Net(nn.Module):
    """Layers a to d of one size, and code between them; what `see` was given is kept."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))
        self.register_buffer("seen_sum", torch.zeros(6))
        self.code = code
        self.kept: list[Tensor] = []

    def see(self, tensor: Tensor) -> Tensor:
        self.kept.append(tensor)
        return tensor

    def forward(self, x: Tensor) -> Tensor:
        self.kept.clear()
        return self.code(self, x)


WHERE = {"a": 0, "b": 1, "c": 2, "d": 0}


def graph_of(code: Code, training: bool = True) -> baechi.LayerGraph:
    model, cluster = seeded(lambda: Net(code))(), baechi.Cluster.virtual(1)
    return baechi.profile(model, {"x": noise(4, 6)}, cluster=cluster, training=training, source="estimate")


def plan_of(code: Code, moves: dict[str, int], training: bool) -> baechi.Plan:
    """Layers as in `WHERE`; functional ops with what they follow, but for some that are moved."""
    cluster, graph = baechi.Cluster.virtual(3), graph_of(code, training)
    device_of = dict.fromkeys(graph.placed(), cluster.names[0])
    for apart, place in ((False, WHERE), (True, moves)):
        for group in graph.groups(apart=apart).values():
            here = [place[name] for name in group if name in place]
            device_of |= dict.fromkeys(group, cluster.names[here[0]]) if here else {}
    return baechi.Plan(graph, cluster, device_of)


def check(
    code: Code, moves: dict[str, int], expected: list[int], reorder: Any, *, training: bool = True
) -> baechi.Plan:
    """What the code saw lies on the expected devices, and two steps are those of the plain model."""
    plan = plan_of(code, moves, training)
    plain, model = (seeded(lambda: Net(code))() for _ in range(2))
    baechi.assign(model, plan, reorder=reorder)
    inputs = {"x": noise(4, 6)}
    for _ in range(2):
        reference = step(plain, inputs, training=training)
        with plan.cluster:
            result = step(model, inputs, training=training)
            places = [runtime_of(model).backend.place_of(tensor) for tensor in model.kept]
        assert places == [plan.cluster.names[number] for number in expected]
        assert_same(reference, result, tolerance=ROUNDING)
    return plan


def joined(net: Any, x: Tensor) -> Tensor:
    out: Tensor = net.c(net.see(net.see(net.a(x) + net.b(x)).relu()))
    return out


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("there", range(3))
def test_an_op_lies_where_the_plan_says(there: int, training: bool, reorder: Any) -> None:
    """What has it as its one input goes with it."""
    check(joined, {"glue:/add#0": there}, [there, there], reorder, training=training)


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_each_call_of_a_function_is_an_op_of_its_own(reorder: Any) -> None:
    """Calls on constants and on inputs alone run on no device, and do not count."""

    def code(net: Any, x: Tensor) -> Tensor:
        a, b = net.a(x), net.b(x)
        constant = torch.ones(6) + torch.ones(6)
        mask = x + x
        one = net.see(a + b)
        other = net.see(b + a)
        again = net.see(one + other)
        out: Tensor = net.c(net.see(again + net.d(x))) + mask * constant
        return out

    plan = check(code, {"glue:/add#1": 2, "glue:/add#2": 0, "glue:/add#3": 1}, [2, 0, 1, 0], reorder)
    assert sorted(site.turn for site in moves_of(plan)) == [0, 1, 2]
    # the third follows the second: beside it by rule, so that this is no move
    plan = check(code, {"glue:/add#1": 2, "glue:/add#2": 0, "glue:/add#3": 0}, [2, 0, 0, 0], reorder)
    assert sorted(site.turn for site in moves_of(plan)) == [0, 1]


@pytest.mark.parametrize("reorder", [False, "host"])
def test_what_is_expanded_is_as_large_as_what_travels(reorder: Any) -> None:
    """The rule is the capture's, so the plan's op is found: it follows the larger input, `b`."""

    def code(net: Any, x: Tensor) -> Tensor:
        larger = net.b(x)
        out: Tensor = net.c(net.see(larger + net.a(x)[:1].expand(4, 6)))
        return out

    plan = check(code, {"glue:/add#0": 2}, [2], reorder)
    assert plan.graph.nodes["glue:/add#0"]["follows"] == "b"


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_another_path_than_was_captured(reorder: Any) -> None:
    """Ops at sites that the plan does not know, or whose inputs lie elsewhere, lie as by rule."""
    plan = plan_of(joined, {"glue:/add#0": 2}, training=True)

    def other(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.c(net.see(net.b(x) + net.a(x)))
        return out + net.see(net.b(x) + out)

    plain, model = (seeded(lambda: Net(other))() for _ in range(2))
    baechi.assign(model, plan, reorder=reorder)
    inputs = {"x": noise(4, 6)}
    reference = step(plain, inputs, training=True)
    with plan.cluster:
        result = step(model, inputs, training=True)
        places = [runtime_of(model).backend.place_of(tensor) for tensor in model.kept]
    assert places == ["cpu:0", "cpu:1"]
    assert_same(reference, result, tolerance=ROUNDING)


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_what_is_written_stays_with_its_memory(reorder: Any) -> None:
    """A moved op's result is written in place there; what `out=` writes does not move."""

    def code(net: Any, x: Tensor) -> Tensor:
        total = net.see(net.a(x) * net.b(x))
        total += net.c(x)
        out: Tensor = net.d(net.see(total))
        return out

    check(code, {"glue:/mul#0": 2}, [2, 2], reorder)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_checkpointed_regions_keep_the_rule(reorder: Any, reentrant: bool) -> None:
    """Backward runs them again, where nothing says which call is which node of the plan."""

    def region(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.c(net.a(x) + net.b(x))
        return out

    def code(net: Any, x: Tensor) -> Tensor:
        first = net.d(x)
        kept: Tensor = checkpoint(region, net, first, use_reentrant=reentrant)
        return net.see(kept + first)

    plan = check(code, {"glue:/add#1": 1}, [1], reorder)
    assert "follows" not in plan.graph.nodes["glue:/add#0"]


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_weights_move_with_the_op_that_owns_them(reorder: Any) -> None:
    """A buffer that an op reads lies where the plan places the op."""

    def code(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.c(net.see(net.a(x) + net.seen_sum))
        return out

    plan = check(code, {"glue:/add#0": 1}, [1], reorder)
    assert plan.graph.nodes["glue:/add#0"]["weights"] == ["seen_sum"]


BOUND: dict[str, Code] = {
    "writes": lambda net, x: net.c(net.a(x).add_(net.b(x))),
    "draws": lambda net, x: net.c(
        F.scaled_dot_product_attention(net.a(x), net.b(x), net.b(x), dropout_p=0.5)
    ),
    "one input": lambda net, x: net.c(torch.cat([net.a(x), x])[:4]),
    "one device": lambda net, x: net.c(net.a(x) + net.a(x)),
    "shape only": lambda net, x: net.c(net.a(x)[:1].expand_as(net.b(x))),
}


@pytest.mark.parametrize("name", BOUND)
def test_bound_ops(name: str) -> None:
    """Ops that must not move, and such as gain nothing by it, share a device with their input."""
    graph = graph_of(BOUND[name])
    assert not graph.says("follows")
    assert graph.groups() == graph.groups(apart=True)


def test_a_plan_with_moves_survives_its_file() -> None:
    """And so do groups."""
    plan = plan_of(joined, {"glue:/add#0": 2}, training=True)
    again = baechi.Plan.from_json(plan.to_json())
    assert moves_of(again) == moves_of(plan) != {}
    assert again.graph.groups() == plan.graph.groups() != plan.graph.groups(apart=True)


def test_plans_without_moves_note_nothing() -> None:
    """A step of such a plan has no sites."""
    plan = plan_of(joined, {}, training=True)
    assert moves_of(plan) == {}
