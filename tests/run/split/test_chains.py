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


class Scaled(Mlp):
    """A weight of the model's own stands between."""

    def __init__(self) -> None:
        super().__init__(lambda x: torch.relu(x) * self.scale)
        self.scale = nn.Parameter(torch.rand(10))


class Convolutions(nn.Module):
    """Channels in place of columns, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv2d(3, 10, 3, padding=1), nn.Conv2d(10, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + self.down(torch.relu(self.up(x)))
        return x


class Attention(nn.Module):
    """Four heads of two columns."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.way = way

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], 4, 2).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        if self.way == "fused":
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = torch.softmax(q @ k.transpose(-2, -1) / 2**0.5, -1) @ v
        if self.way == "mixes heads":
            mixed = mixed.softmax(1)
        made: torch.Tensor = self.o(mixed.transpose(1, 2).reshape(x.shape))
        return made


def by_heads(number: int) -> dict[str, Any]:
    return {"q": number, "k": number, "v": number, "o": {"in": number}}


def scaled(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh") * 0.5 + 1


OUT, IN = {"out": 4}, {"in": 4}
LINKED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "nothing": (lambda: Mlp(nn.Identity()), {"up": OUT, "down": IN}),
    "ops": (lambda: Mlp(scaled), {"up": OUT, "down": IN}),
    "an activation": (lambda: Mlp(nn.GELU()), {"up": OUT, "down": IN}),
    "in place": (lambda: Mlp(nn.ReLU(inplace=True)), {"up": OUT, "down": IN}),
    "gated": (Gated, {"gate": OUT, "up": OUT, "down": IN}),
    "heads": (lambda: Attention("fused"), by_heads(2)),
    "heads, uneven": (
        lambda: Attention("fused"),
        {name: baechi.BatchSpec({dim: 6}) for name, dim in zip("qkvo", ["out"] * 3 + ["in"], strict=True)},
    ),
    "heads, by products": (lambda: Attention("products"), by_heads(4)),
    "cut through heads": (lambda: Attention("fused"), by_heads(3)),
    "mixes heads": (lambda: Attention("mixes heads"), by_heads(2)),
    "convolutions": (Convolutions, {"up": {"out_channels": 4}, "down": {"in_channels": 4}}),
}
APART: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "softmax": (lambda: Mlp(nn.Softmax(-1)), {"up": OUT, "down": IN}),
    "a weight": (Scaled, {"up": OUT, "down": IN}),
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
    x = torch.randn(2, 3, 8, dtype=torch.float64) if "o" in split else torch.randn(2, 3, 6, 6).double()
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
    assert joins == (list(split)[-1:] if name in LINKED else list(split))


@pytest.mark.parametrize(
    ("build", "outer", "last", "shape"),
    [
        (lambda: Mlp(nn.GELU()), ["up"], "down", (4, 6)),
        (lambda: Attention("fused"), ["q", "k", "v"], "o", (2, 3, 8)),
        (lambda: Attention("products"), ["q", "k", "v"], "o", (2, 3, 8)),
    ],
)
def test_nothing_travels_between_tiles_that_lie_together(
    build: Callable[[], nn.Module], outer: list[str], last: str, shape: tuple[int, ...]
) -> None:
    """The input goes out, a sum comes back: the hidden values stay where they are made."""
    model, _ = twins(build)
    half = getattr(model, outer[0]).out_features // 2
    split = {name: baechi.BatchSpec({"out": half}, [0, 1]) for name in outer}
    split[last] = baechi.BatchSpec({"in": half}, [0, 1], 0)
    cluster = split_on(2, model, torch.randn(shape, dtype=torch.float64), split)
    with cluster:
        model(torch.randn(shape, dtype=torch.float64))
    sent = [span for span in baechi.last_step(model).spans if span.kind == "transfer"]
    between = [span for span in sent if "host" not in span.where]
    assert [span.where for span in between] == ["cpu:1>cpu:0"], between
