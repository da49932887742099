"""What a layer reads and writes without being given it: weights, buffers, other modules."""

import dataclasses
from typing import Any

import torch
from run.protections.models import Shift, shifts
from run.protections.needs import without_attribute
from run.protections.rows import FORCED, NUMBERS, row
from run.protections.scenarios import scenario
from torch import Tensor, nn

from baechi.run import layers
from baechi.run.launch import call
from baechi.run.launch.needs import Needs
from baechi.run.runtime import Runtime
from baechi.run.state.contents import Contents


def without_layer(facts: Any, module: nn.Module, *values: Any, short: bool) -> Contents:
    """What is within reach of arguments, not of the layer itself."""
    return Contents(*values)


def call_without(unknown: str) -> tuple[Any, str, Any]:
    """Calls that do not say what they write without being given it."""
    return layers, "Call", lambda *args: dataclasses.replace(call.Call(*args), **{unknown: ()})


def needs_without_buffers() -> tuple[Any, str, Any]:
    """What waits to read the buffers that a layer writes is not needed."""
    needs = Needs.of_layer
    return Needs, "of_layer", lambda self, layer, contents, keeps: needs(self, layer, contents, ())


@scenario(
    row("weights that a waiting layer reads", NUMBERS, (layers, "contents_of", without_layer)),
    layers=shifts("ab"),
    order="ba",
    launched="b a",
)
def weight_written_under_a_waiting_layer(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    with torch.no_grad():
        net.a.weight.mul_(2)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("weights that a waiting task writes", NUMBERS, (layers, "contents_of", without_layer)),
    layers=shifts("abc"),
    devices={"c": 1},
    order="bac",
    launched="b a c",
)
def weight_written_by_what_waits(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    with torch.no_grad():
        net.c.weight.add_(a.detach()[0])
    c: Tensor = net.c(x)
    return a + net.b(x) + c


def norm() -> nn.Module:
    return nn.BatchNorm1d(8)


@scenario(
    row("buffers that a waiting layer writes", NUMBERS, call_without("keeps")),
    layers={**shifts("b"), "norm": norm},
    order=["b", "norm"],
    launched="b norm",
)
def statistics_of_a_waiting_layer(net: Any, x: Tensor) -> Tensor:
    n = net.norm(x)
    mean = net.norm.running_mean * 1
    b: Tensor = net.b(x)
    return n + mean + b


@scenario(
    row("buffers that what waits reads", NUMBERS, needs_without_buffers()),
    layers={**shifts("ab"), "norm": norm},
    devices={"norm": 1},
    order=["b", "a", "norm"],
    launched="b a norm",
)
def statistics_read_by_what_waits(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    mean = net.norm.running_mean[None] + (x if net.captured else a)  # the plan does not know of a
    n = net.norm(x)
    b: Tensor = net.b(x)
    return n + mean + b


class Counts(Shift):
    """Writes its buffer in training only: a plan for inference does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.mul_(0.5).add_(x[0])  # type: ignore[operator]
        return super().forward(x) + self.seen.clone()  # type: ignore[operator]


def stateless() -> tuple[Any, str, Any]:
    """No module is said to have buffers."""
    original = Runtime.__init__

    def made(self: Runtime, *args: Any, reorder: Any = True, **_: Any) -> None:
        original(self, *args, reorder=reorder)

    return Runtime, "__init__", made


@scenario(
    row("calls of a module with buffers keep their order", FORCED, stateless()),
    layers={**shifts("b"), "c": Counts},
    order=["c", "b", "c#2", "c#1"],
    captured_for_training=False,
    launched="c b c#1 c#2",
)
def called_again(net: Any, x: Tensor) -> Tensor:
    first, second, third = net.c(x), net.c(x + 1), net.c(x + 2)
    b: Tensor = net.b(x)
    return first + second * 2 + third * 3 + b


class Writes(nn.Module):
    """Keeps the mean of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.register_buffer("cache", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.weight
        self.cache.copy_(y.detach().mean(0))  # type: ignore[operator]
        return y


LOOKED_AT: list[Any] = []


def look_at(net: Any) -> None:
    """The layers that are looked at are those of this network."""
    LOOKED_AT[:] = [net.a]


class Looks(Shift):
    """Reads what is in a global list, which nobody hands to it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + sum(one.cache for one in LOOKED_AT)


@scenario(
    row("what the plan says is read", r"launched", without_attribute("_parents", {})),
    layers={"a": Writes, "b": Shift, "c": Looks},
    setup=look_at,
    order="bac",
    launched="a c b",
    forced=("gt",),
)
def read_without_being_given(net: Any, x: Tensor) -> Tensor:
    a, c = net.a(x), net.c(x)
    if not net.captured and c.sum() > 1e9:
        c = -c
    b: Tensor = net.b(x)
    return a + b + c
