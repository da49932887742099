"""Chains that are cut alike stay unjoined: one scatter, one sum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.split.split_layers import TOLERANCE, assert_same, split_on, twins
from torch import nn
from torch.nn import functional

import baechi


class Mlp(nn.Module):
    """Two linear layers with something between."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor] | nn.Module) -> None:
        super().__init__()
        self.up, self.between, self.down = nn.Linear(6, 10), between, nn.Linear(10, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(self.between(self.up(x)))
        return made


class Gated(nn.Module):
    """As in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(6, 10), nn.Linear(6, 10), nn.Linear(10, 6, bias=False)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(self.act(self.gate(x)) * self.up(x))
        return made


class Convolutions(nn.Module):
    """Channels in place of columns, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv2d(3, 10, 3, padding=1), nn.Conv2d(10, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + self.down(torch.relu(self.up(x)))
        return x


def scaled(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh") * 0.5 + 1


OUT, IN = {"out": 4}, {"in": 4}
LINKED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "nothing": (lambda: Mlp(nn.Identity()), {"up": OUT, "down": IN}),
    "ops": (lambda: Mlp(scaled), {"up": OUT, "down": IN}),
    "an activation": (lambda: Mlp(nn.GELU()), {"up": OUT, "down": IN}),
    "in place": (lambda: Mlp(nn.ReLU(inplace=True)), {"up": OUT, "down": IN}),
    "gated": (Gated, {"gate": OUT, "up": OUT, "down": IN}),
    "convolutions": (Convolutions, {"up": {"out_channels": 4}, "down": {"in_channels": 4}}),
}
APART: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "softmax": (lambda: Mlp(nn.Softmax(-1)), {"up": OUT, "down": IN}),
    "cut elsewhere": (lambda: Mlp(nn.GELU()), {"up": OUT, "down": {"in": 3}}),
    "along the other axis": (lambda: Mlp(nn.GELU()), {"up": OUT, "down": {"out": 3}}),
    "one of two": (Gated, {"gate": OUT, "down": IN}),
    "a base device": (
        lambda: Mlp(nn.GELU()), {"up": baechi.BatchSpec({"out": 3}, base_device=1), "down": {"in": 4}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("placer", ["round-robin", "random:3"])
@pytest.mark.parametrize("name", [*LINKED, *APART])
def test_values_and_gradients(name: str, placer: str) -> None:
    """They are those of the whole layers; a chain has joins where the whole is needed only."""
    build, split = (LINKED | APART)[name]
    model, plain = twins(build)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    y = x.clone().requires_grad_()
    with split_on(3, model, x, split, placer=placer):
        x.requires_grad_()
        result = model(x)
        (result * result).sum().backward()
    expected = plain(y)
    (expected * expected).sum().backward()
    torch.testing.assert_close(result.detach().cpu(), expected.detach(), rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=TOLERANCE)
    assert_same(model, plain)
    joins = [layer for layer in split if f"{layer}[join]" in baechi.plan_of(model).graph]
    assert joins == (["down"] if name in LINKED else list(split))


def test_nothing_travels_between_tiles_that_lie_together() -> None:
    """The input goes out, a sum comes back: the hidden values stay where they are made."""
    model, _ = twins(lambda: Mlp(nn.GELU()))
    x = torch.randn(4, 6, dtype=torch.float64)
    out, back = (baechi.BatchSpec({dim: 5}, [0, 1], base) for dim, base in (("out", None), ("in", 0)))
    cluster = split_on(2, model, x, {"up": out, "down": back})
    with cluster:
        model(x)
    sent = [span for span in baechi.last_step(model).spans if span.kind == "transfer"]
    between = [span for span in sent if "host" not in span.where]
    assert [span.where for span in between] == ["cpu:1>cpu:0"], between
