"""Regions that keep the code's order."""

from typing import Any

import torch
from run.protections.caller_state import packing
from run.protections.models import linears, shifts
from run.protections.rows import ERROR, NUMBERS, row
from run.protections.scenarios import scenario
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from baechi.run.launch import code_order, schedule


def in_order_but(reason: str) -> tuple[Any, str, Any]:
    """What keeps the code's order does so for all reasons but one."""
    original = schedule.must_keep_code_order

    def kept(modes_before: tuple[int, int]) -> str:
        found = original(modes_before)
        return "" if reason in found else found

    return schedule, "must_keep_code_order", kept


@scenario(
    row("order under hooks on saved tensors", NUMBERS, in_order_but("hooks see")),
    layers=linears("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def under_hooks(net: Any, x: Tensor) -> Tensor:
    with packing(net):
        a = net.a(torch.tanh(x))
    b: Tensor = net.b(x)
    return a + b


class Through(torch.autograd.Function):
    """Calls a layer in its forward."""

    @staticmethod
    def forward(ctx: Any, net: Any, x: Tensor) -> Tensor:
        result: Tensor = net.a(x)
        return result * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0] * 2


@scenario(
    row("order inside a function", NUMBERS, in_order_but("autograd.Function")),
    row("that a function's code runs", NUMBERS, (code_order, "inside_a_function", lambda: False)),
    layers=shifts("abc"),
    order="cba",
    launched="c a b",
    forced=("a",),
)
def inside_a_function(net: Any, x: Tensor) -> Tensor:
    a: Tensor = Through.apply(net, net.c(x))
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("order inside a transform", ERROR, in_order_but("transform")),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def inside_a_transform(net: Any, x: Tensor) -> Tensor:
    a = torch.vmap(net.a)(x)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("order in backward", ERROR, in_order_but("backward")),
    layers=shifts("abc"),
    order="cba",
    launched="c a b",
    forced=("a",),
)
def inside_backward(net: Any, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    c = net.c(x)
    c.register_hook(lambda grad: net.a(grad).detach())
    (grad,) = torch.autograd.grad(c.sum(), x)
    b: Tensor = net.b(x)
    return b + grad + net.c.weight


class Counting(TorchFunctionMode):
    """Notes when it sees a linear layer compute."""

    def __init__(self, notes: list[Any]) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and not isinstance(args[0], FakeTensor):
            self.notes.append(func.__name__)
        return func(*args, **(kwargs or {}))


@scenario(
    row("order under a mode of the code's", NUMBERS, in_order_but("a mode is on")),
    layers=linears("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def under_a_mode(net: Any, x: Tensor) -> Tensor:
    with Counting(net.notes):
        a = net.a(x)
    b: Tensor = net.b(x)
    return a + b
