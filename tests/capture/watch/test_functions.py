"""Functions that no mode sees, and transforms, in forward."""

from dataclasses import dataclass
from typing import Any

import torch
from run.two import Two, same_on_two_devices
from torch import nn

import baechi


@dataclass
class Square:
    """What `torch.func` takes the gradient of."""

    weight: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * self.weight) ** 2).sum()


def test_functional_transforms_in_forward() -> None:
    """`torch.func.grad` allows no saved-tensor hooks, so nothing with it could be captured; `vmap`
    over tensors of two devices found no device in its wrapped tensors."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h, g = m.a(x), m.b(x)
        slopes = torch.func.grad(Square(m.scale))(h)
        return torch.vmap(torch.mul)(h, g) + slopes

    for training in (True, False):
        same_on_two_devices(lambda: Two(forward, scale=nn.Parameter(torch.ones(4))), training=training)


class Product(torch.autograd.Function):
    """Saves what it reads."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        return grad * b, grad * a


def test_custom_function_over_two_layers() -> None:
    """No mode sees `Function.apply`, and its backward reads what its forward saved: all that it
    reads lies on one device."""
    model = Two(lambda m, x: Product.apply(m.a(x), m.b(x)))
    graph = baechi.profile(model, torch.ones(3, 4), cluster=baechi.Cluster.virtual(2))
    assert len({graph.nodes[n].get("colocate") for n in ("a", "b", "glue:/Product#0")}) == 1
