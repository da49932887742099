"""Which layers write nothing in training, as their classes and the operators of an evaluation say."""

import functools
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from run.launched import runtime_of
from torch import Tensor, nn

import baechi
from baechi.run.steady.reads import reads_in_both_settings


class Asks(nn.Linear):
    """Writes in training only."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.bias.data.add_(1)
        return super().forward(x)


class AsksInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4), Asks(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x)


class AsksByName(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (2 if getattr(self, "training") else 1))  # noqa: B009


def hooked() -> nn.Module:
    layer = nn.Sequential(nn.Linear(4, 4))
    layer[0].register_forward_pre_hook(lambda module, args: None)
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(4, 4),
        nn.Dropout(0.5),
        nn.LayerNorm(4),
        nn.LSTM(4, 4),
        nn.MultiheadAttention(4, 2),
        nn.GELU(),
        nn.TransformerEncoderLayer(4, 2, 8),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
        nn.Embedding(4, 4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_read_whatever_the_flag(layer: nn.Module) -> None:
    assert reads_in_both_settings(layer)


@pytest.mark.parametrize(
    "layer",
    [
        Asks(4, 4),
        AsksInside(),
        AsksByName(4, 4),
        nn.BatchNorm1d(4),
        nn.Dropout(0.5, inplace=True),
        hooked(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        torch.jit.script(nn.Linear(4, 4)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_may_write_in_training(layer: nn.Module) -> None:
    assert not reads_in_both_settings(layer)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.asks, self.norm = nn.Linear(4, 4), Asks(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.asks(self.a(x)))


def test_a_capture_in_evaluation_trains() -> None:
    """Layers that read take the fast path in training; those that may write are treated as such."""
    build = seeded(Mixed)
    plain, model = build().eval(), build().eval()
    x = noise(6, 4)
    baechi.distribute(model, x, cluster=baechi.Cluster.virtual(2), device_map={"a": 0, "asks": 1, "norm": 0})
    for training in (False, True, True, False):
        assert torch.equal(plain.train(training)(x), model.train(training)(x))
        layers = runtime_of(model).layers
        writing = {name for name in ("a", "asks", "norm") if layers[name].writes(model.get_submodule(name))}
        assert writing == ({"asks", "norm"} if training else set())
    assert torch.equal(plain.norm.running_mean, model.norm.running_mean)
    assert torch.equal(plain.asks.bias, model.asks.bias)


def test_code_behind_a_decorator_is_read() -> None:
    """A forward that asks for the training flag is not known to read, whatever is around it."""

    def around(forward: Any) -> Any:
        @functools.wraps(forward)
        def run(*args: Any) -> Any:
            return forward(*args)

        return run

    class Decorated(nn.Module):
        @around
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if self.training else x

    assert not reads_in_both_settings(Decorated())
