"""A small network whose code is a function: what a test of an odd input needs, no more."""

from collections.abc import Callable
from typing import Any

import torch
from architectures.base import noise, seeded
from torch import Tensor, nn


class Net(nn.Module):
    """Layers, and a forward that is given."""

    def __init__(self, code: Callable[..., Any], layers: dict[str, Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.code = code
        for name, layer in layers.items():
            setattr(self, name, layer())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.code(self, *args, **kwargs)


def linear() -> nn.Module:
    return nn.Linear(8, 8)


def crossed(net: Any, x: Tensor) -> Any:
    """Layers that the plan launches in another order than the code reaches them."""
    a, b = net.a(x), net.b(x)
    c, d = net.c(a), net.d(x)
    return b + c * d


class World:
    """A small model that is hard to get right.

    Args:
        code: its forward.
        inputs: makes its inputs.
        trains: whether there is something to train.
        layers: what makes each layer; four square ones, unless given.
    """

    def __init__(
        self,
        code: Callable[..., Any],
        inputs: Callable[[], dict[str, Any]],
        trains: bool = True,
        **layers: Any,
    ) -> None:
        self.code, self.inputs, self.trains = code, inputs, trains
        self.layers = layers or dict.fromkeys("abcd", linear)

    def build(self) -> nn.Module:
        return seeded(lambda: Net(self.code, self.layers))()


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"x": noise(*(shape or (3, 8))).to(dtype)}
