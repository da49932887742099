"""A model of equal blocks, and a compiler's backend that counts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

OPERATORS = ["linear", "relu", "linear", "add"]
"""What a block computes."""


class Block(nn.Module):
    """Two layers and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.b(torch.relu(self.a(x)))
        return x + h


class Tower(nn.Module):
    """Equal blocks in a row, and a layer beside the first ones."""

    def __init__(self, count: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(count)])
        self.side = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x
        for block in self.blocks:
            y = block(y)
        return y + self.side(x)


def tower() -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return Tower()


class Counting:
    """A backend that changes nothing. What was compiled before is forgotten.

    Attributes:
        compiled: by compilation, its operators.
        runs: how often compiled code ran.
    """

    def __init__(self) -> None:
        torch._dynamo.reset()
        self.compiled: list[list[str]] = []
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        called = [node.target for node in graph.graph.nodes if node.op.startswith("call")]
        self.compiled.append([getattr(target, "__name__", str(target)) for target in called])

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph(*args)

        return run


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Output, and gradients."""
    model.zero_grad()
    out: Tensor = model(x)
    out.sum().backward()
    grads = [weight.grad for weight in model.parameters()]
    return [out.detach(), *[grad for grad in grads if grad is not None]]
