"""Two layers and one beside them: the same weights and inputs each time."""

import torch
from order.interleaved import distribute
from torch import Tensor, nn

import baechi


class Chain(nn.Module):
    """Two layers and one beside them, which the plans here launch first: so the others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b, self.c = (
            nn.Linear(4, 4),
            nn.ReLU(inplace=True),
            nn.Linear(4, 4),
            nn.Linear(4, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.b(self.act(self.a(x)))
        return h + self.c(x)


def chain() -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return Chain()


def values() -> Tensor:
    """An input that is always the same."""
    return torch.linspace(-1, 1, 12).view(3, 4)


def spread(model: nn.Module) -> baechi.Cluster:
    """Distribute a model over two devices, in this order; returns them."""
    return distribute(model, values(), {"a": 0, "act": 0, "b": 1, "c": 0}, ("c", "a", "act", "b"))
