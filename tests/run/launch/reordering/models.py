"""Little models on which a removed protection shows."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Layers by name around a function that is its forward; one more, `far`, so that there are two devices.

    `captured` says whether this is the run that was captured, `number` which of the later ones;
    `notes` is what the function saw, `kept` what it put away, `watched` what nobody may hold after it;
    `backwards` are the layers in the order of their gradients.
    """

    def __init__(self, code: Callable[..., Any], layers: Mapping[str, Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.code = code
        self.captured, self.number = True, 0
        self.notes: list[Any] = []
        self.kept: list[Any] = []
        self.watched: list[weakref.ref[Tensor]] = []
        self.backwards: list[str] = []
        self.far = Shift()
        for name, layer in layers.items():
            setattr(self, name, layer())
        for name, weight in self.named_parameters():
            weight.register_post_accumulate_grad_hook(self._noting(name))

    def _noting(self, name: str) -> Callable[[Tensor], None]:
        return lambda _: self.backwards.append(name.partition(".")[0])

    def watch(self, tensor: Tensor) -> None:
        """Nobody may hold this tensor when the step is over."""
        self.watched.append(weakref.ref(tensor))

    def forward(self, **inputs: Any) -> Any:
        self.notes, self.kept, self.watched, self.backwards = [], [], [], []
        self.number += 1
        self.far(torch.ones(8))
        return self.code(self, **inputs)


class Shift(nn.Module):
    """Adds its weight: autograd saves nothing of its input, which may be written afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


def linear() -> nn.Module:
    return nn.Linear(8, 8)


def shifts(names: str) -> dict[str, Callable[[], nn.Module]]:
    """A `Shift` for each letter."""
    return dict.fromkeys(names, Shift)


def linears(names: str) -> dict[str, Callable[[], nn.Module]]:
    """A linear layer for each letter."""
    return dict.fromkeys(names, linear)


def statistics(net: Net) -> None:
    """The running mean and variance of a normalization, on the net itself."""
    net.register_buffer("mean", torch.zeros(8))
    net.register_buffer("var", torch.ones(8))
