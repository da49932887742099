"""Two layers side by side and one that joins them: the same weights and inputs each time."""

from collections.abc import Callable
from typing import Any

import torch
from run.launched import LAUNCHERS, runtime_of
from torch import Tensor, nn


class Net(nn.Module):
    """Layers by name around a function that is its forward."""

    def __init__(self, code: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.code = code
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.code(self, *args, **kwargs)


def linear(width: int = 8) -> nn.Module:
    """A layer whose weights are always the same."""
    layer = nn.Linear(width, width)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.linspace(-0.4, 0.6, weight.numel()).view_as(weight))
    return layer


def values(rows: int = 3, width: int = 8) -> Tensor:
    """An input that is always the same."""
    return torch.linspace(-1, 1, rows * width).view(rows, width)


def two_chains(self: Any, x: Tensor) -> Tensor:
    """`a` waits where the plan says `b` first; so does the glue on it."""
    h = self.a(x) * 2
    k = torch.relu(self.b(x))
    result: Tensor = self.c(h + k)
    return result


def chains() -> Net:
    """Two layers side by side, and one that joins them."""
    return Net(two_chains, a=linear(), b=linear(), c=linear())


WHERE, ORDER = {"a": 0, "b": 0, "c": 1}, "bac"


EVERY_WAY = (*LAUNCHERS, True, False)


def forced(model: nn.Module) -> list[str]:
    """What was forced in the last step."""
    return [str(one) for one in runtime_of(model).forced]
