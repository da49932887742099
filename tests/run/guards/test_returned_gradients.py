"""Gradients that the code hands to autograd, and that functions return, go where they belong."""

from typing import Any

import pytest
import torch
from run.checks import REORDER, check, vectors
from torch import Tensor, nn


class EnergyOnTwoDevices(nn.Module):
    """A product of a vector with the Jacobian of a layer, the vector made by another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out, vector = torch.tanh(self.a(x)), self.b(x)
            (product,) = torch.autograd.grad(out, x, grad_outputs=vector, create_graph=True)
            (again,) = torch.autograd.grad([out, vector], [x], [vector, out], create_graph=True)
        result: Tensor = product + again
        return result


@pytest.mark.parametrize("reorder", REORDER)
def test_gradients_that_the_code_hands_to_autograd_travel(reorder: Any) -> None:
    """`grad_outputs` are brought to where the outputs lie, as what a layer is given is brought to it."""
    check(EnergyOnTwoDevices, vectors, {"a": 0, "b": 1}, reorder)


class Coupled(torch.autograd.Function):
    """Two layers one after the other; backward runs both again and sums their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, one: nn.Module, other: nn.Module) -> Tensor:
        ctx.layers = one, other
        ctx.save_for_backward(x)
        with torch.no_grad():
            result: Tensor = one(x) + other(x)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        found = []
        for layer in ctx.layers:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                out = layer(x)
            out.backward(grads[0])
            found.append(x.grad)
        return found[0] * 1 + layer(found[1]) - layer(found[1]), None, None


class Reversible(nn.Module):
    """Such a function between layers, as in RevNet and Reformer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        coupled = Coupled.apply(torch.tanh(self.a(x)), self.b, self.c)  # type: ignore[no-untyped-call]
        result: Tensor = self.d(coupled)
        return result


@pytest.mark.parametrize("reorder", REORDER)
def test_gradients_that_a_function_returns_go_home(reorder: Any) -> None:
    """The backward of an `autograd.Function` may compute over devices; its input's gradient goes back.

    Autograd went on with a gradient that lay on another device than the layer before the function.
    """
    check(Reversible, vectors, {"a": 0, "b": 1, "c": 2, "d": 1}, reorder)
