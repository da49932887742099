"""Chains that are cut alike stay sharded: one scatter, one sum."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from run.split.split_layers import assert_runs_alike, split_on, twins
from torch import nn
from torch.nn import functional

import baechi

pytestmark = pytest.mark.default_cases(2)


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


class OneProduct(Attention):
    """Queries, keys and values in one product, as in GPT-2; an empty cache; a scale for each head."""

    def __init__(self, way: str) -> None:
        super().__init__("fused")
        self.qkv, self.way = nn.Linear(8, 24), way
        del self.q, self.k, self.v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.qkv(x)
        if self.way == "slices":
            parts = made[..., :8], made[..., 8:16], made[:, :, 16:]
        else:
            parts = made.chunk(3, -1) if self.way == "chunk" else made.split(8, dim=-1)
        q, k, v = (self.heads(part) for part in parts)
        k = torch.cat([torch.tensor([], dtype=k.dtype), k], dim=-2)
        q = q * torch.arange(1, 5).view(4, 1, 1)
        scores = torch.where(torch.ones(3, 3).bool().tril(), q @ k.transpose(2, 3), -1e9)
        mixed = functional.dropout(torch.softmax(scores, -1), 0.0) @ v
        result: torch.Tensor = self.o(mixed.permute(0, 2, 1, 3).reshape(x.shape))
        return result


class Rotary(Attention):
    """Positions turn halves of each head, as in Llama; two heads of queries for each of keys."""

    def __init__(self) -> None:
        super().__init__("fused")
        self.q, self.o = nn.Linear(8, 16), nn.Linear(16, 8)
        self.angles = nn.Linear(1, 2)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        angles = self.angles(torch.arange(3, dtype=x.dtype)[:, None])
        first, second = x[..., :1], x[..., 1:]
        return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).view(2, 3, -1, 2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        first = k[:, :, None].expand(2, 4, 2, 3, 2).reshape(2, 8, 3, 2)  # what Llama's code does with a mask
        mixed = functional.scaled_dot_product_attention(q, first, first)
        mixed = mixed + functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        result: torch.Tensor = self.o(mixed.transpose(1, 2).reshape(2, 3, 16))
        return result


def by_heads(number: int) -> dict[str, Any]:
    return {"q": number, "k": number, "v": number, "o": {"in": number}}


def in_one_product(size: int) -> dict[str, Any]:
    """Shards of so many columns of each of the three values."""
    inner = [baechi.BatchSpec({"out": 8}), baechi.BatchSpec({"out": size})]
    return {"qkv": inner, "o": baechi.BatchSpec({"in": size})}


def scaled(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh") * 0.5 + 1


OUT, IN = {"out": 4}, {"in": 4}
LINKED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "nothing": (lambda: Mlp(nn.Identity()), {"up": OUT, "down": IN}),
    "ops": (lambda: Mlp(scaled), {"up": OUT, "down": IN}),
    "an activation": (lambda: Mlp(nn.GELU()), {"up": OUT, "down": IN}),
    "in place": (lambda: Mlp(nn.ReLU(inplace=True)), {"up": OUT, "down": IN}),
    "gated": (Gated, {"gate": OUT, "up": OUT, "down": IN}),
    "one of two": (Gated, {"gate": OUT, "down": IN}),
    "heads": (lambda: Attention("fused"), by_heads(2)),
    "heads, uneven": (
        lambda: Attention("fused"),
        {name: baechi.BatchSpec({dim: 6}) for name, dim in zip("qkvo", ["out"] * 3 + ["in"], strict=True)},
    ),
    "heads, by products": (lambda: Attention("products"), by_heads(4)),
    "cut through heads": (lambda: Attention("fused"), by_heads(3)),
    "mixes heads": (lambda: Attention("mixes heads"), by_heads(2)),
    "one product, sliced": (lambda: OneProduct("slices"), in_one_product(2)),
    "one product, uneven": (lambda: OneProduct("split"), in_one_product(6)),
    "one product, in chunks": (lambda: OneProduct("chunk"), in_one_product(4)),
    "rotary": (Rotary, by_heads(2)),
    "rotary, four": (Rotary, by_heads(4)),
    "convolutions": (Convolutions, {"up": {"out_channels": 4}, "down": {"in_channels": 4}}),
}
APART: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "softmax": (lambda: Mlp(nn.Softmax(-1)), {"up": OUT, "down": IN}),
    "a weight": (Scaled, {"up": OUT, "down": IN}),
    "cut elsewhere": (lambda: Mlp(nn.GELU()), {"up": OUT, "down": {"in": 3}}),
    "along the other axis": (lambda: Mlp(nn.GELU()), {"up": OUT, "down": {"out": 3}}),
    "a base device": (
        lambda: Mlp(nn.GELU()), {"up": baechi.BatchSpec({"out": 3}, base_device=1), "down": {"in": 4}}
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "placer"), list(zip([*LINKED, *APART], cycle(["round-robin", "random:3"]), strict=False))
)
def test_values_and_gradients(name: str, placer: str) -> None:
    """They are those of the whole layers; a chain has joins where the whole is needed only."""
    build, split = (LINKED | APART)[name]
    model, plain = twins(build)
    x = torch.randn(2, 3, 8, dtype=torch.float64) if "o" in split else torch.randn(2, 3, 6, 6).double()
    cluster = split_on(3, model, x, split, placer=placer)
    assert_runs_alike(model, plain, x.requires_grad_(), cluster)
    joins = [layer for layer in split if f"{layer}[join]" in baechi.plan_of(model).graph]
    assert joins == (list(split)[-1:] if name in LINKED else list(split))


HALF: dict[str, tuple[str, int]] = {"up": ("out", 5), "down": ("in", 5), "qkv": ("out", 4), "o": ("in", 4)}


@pytest.mark.parametrize(
    "build",
    [
        lambda: Mlp(nn.GELU()),
        lambda: Attention("fused"),
        lambda: Attention("products"),
        lambda: OneProduct("split"),
        Rotary,
    ],
)
def test_nothing_travels_between_tiles_that_lie_together(build: Callable[[], nn.Module]) -> None:
    """The input goes out, a sum comes back: the hidden values stay where they are made."""
    model, _ = twins(build)
    split: dict[str, Any] = {}
    for name, layer in model.named_children():
        if isinstance(layer, nn.Linear) and name != "angles":
            dim, size = HALF.get(name, ("out", layer.out_features // 2))
            size = layer.in_features // 2 if dim == "in" else size
            spec = baechi.BatchSpec({dim: size}, [0, 1], 0 if dim == "in" else None)
            split[name] = [baechi.BatchSpec({dim: 8}), spec] if name == "qkv" else spec
    x = torch.randn((2, 3, 8) if "o" in split else (4, 6), dtype=torch.float64)
    cluster = split_on(2, model, x, split)
    with cluster:
        model(x)
    sent = [span for span in baechi.last_step(model).spans if span.kind == "transfer"]
    back = [span.where for span in sent if span.where.endswith(">cpu:0") and "host" not in span.where]
    whole = [node for node, place in baechi.plan_of(model).device_of.items() if place == "cpu:1"]
    made_whole = [
        node for node in whole if node.startswith(("glue:/cos", "glue:/sin"))
    ]  # both shards read it
    assert back == ["cpu:1>cpu:0"] * (1 + len(made_whole)), sent
