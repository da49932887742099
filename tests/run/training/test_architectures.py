"""Training inside `with cluster:` gives the numbers of the plain model trained outside of it."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch
from architectures import HELD_IN, Architecture, loss_of
from architectures.of_zoo import our_own
from matrix import in_turn_by_tier
from run.training.towers import assert_equal
from same import identical
from torch import nn

import baechi
from baechi import zoo
from baechi.torchlib.tensors.pytree import map_tensors

pytestmark = pytest.mark.default_cases(1)

Parameters = Iterable[nn.Parameter]
Optimizers = Callable[[Parameters], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizers] = {
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.001, foreach=False),
    "foreach": lambda weights: torch.optim.Adam(weights, lr=0.001, foreach=True),
    "fused": lambda weights: torch.optim.Adam(weights, lr=0.001, fused=True),
}

EXACT = ("gpt2",)
"""No gradient in these is a sum of three or more that a placement may take in another order."""

SINGLE_ONLY = ("mixtral",)
"""Torch multiplies groups of matrices in single precision only."""


def doubled(plain: Architecture) -> Architecture:
    """An architecture in double precision."""

    def double(value: Any) -> Any:
        return map_tensors(lambda t: t.double() if t.is_floating_point() else t, value)

    return Architecture(plain.name, lambda: plain.build().double(), lambda: double(plain.inputs()))


SINGLE = {a.name: a for a in (*[our_own(name) for name in zoo.MODELS], *HELD_IN)}
MODELS = {name: plain if name in (*EXACT, *SINGLE_ONLY) else doubled(plain) for name, plain in SINGLE.items()}
TOLERANCE = {name: 0.0 if name in EXACT else 2e-5 if name in SINGLE_ONLY else 1e-9 for name in MODELS}


def trained(
    model: nn.Module, inputs: dict[str, Any], optimizer: Optimizers, *, clipped: bool
) -> list[torch.Tensor]:
    """Three steps of training, seeded; the losses."""
    torch.manual_seed(3)
    model.train()
    weights, losses = optimizer(model.parameters()), []
    for _ in range(3):
        weights.zero_grad()
        loss = loss_of(model(**inputs))
        loss.backward()
        if clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        weights.step()
        losses.append(loss.detach())
    return losses


@cache
def graph_of(architecture: Architecture) -> baechi.LayerGraph:
    cluster = baechi.Cluster.virtual(1)
    return baechi.profile(architecture.build(), architecture.inputs(), cluster=cluster, training=True)


def distributed(
    architecture: Architecture, n: int, placer: str, *, reorder: bool = True
) -> tuple[nn.Module, baechi.Cluster]:
    """The architecture on n emulated devices."""
    cluster = baechi.Cluster.virtual(n)
    plan = baechi.place(graph_of(architecture), cluster, placer)
    assert len(plan.devices_used) == n
    return baechi.assign(architecture.build(), plan, reorder=reorder), cluster


@pytest.mark.parametrize(("name", "optimizer"), in_turn_by_tier(list(MODELS), list(OPTIMIZERS)))
def test_three_devices(name: str, optimizer: str) -> None:
    """Losses, weights and buffers after three steps of an optimizer, half of them with clipping."""
    clipped = list(MODELS).index(name) % 8 < 4
    architecture, tolerance = MODELS[name], TOLERANCE[name]
    plain = architecture.build()
    expected = trained(plain, architecture.inputs(), OPTIMIZERS[optimizer], clipped=clipped)
    # backward is the launch order in reverse, so in another order than the code's sums round otherwise
    model, cluster = distributed(architecture, 3, "random:1", reorder=name not in EXACT)
    with cluster:
        losses = trained(model, architecture.inputs(), OPTIMIZERS[optimizer], clipped=clipped)
    for one, other in zip(expected, losses, strict=True):
        assert abs(float(one - other)) <= tolerance * max(1.0, abs(float(one)))
    assert_equal(plain, model, tolerance=tolerance)


@pytest.mark.parametrize("name", SINGLE)
def test_one_device(name: str) -> None:
    """On one emulated device everything is exact, in single precision."""
    index = list(SINGLE).index(name)
    optimizer = list(OPTIMIZERS.values())[index % 4]
    architecture, plain = SINGLE[name], SINGLE[name].build()
    expected = trained(plain, architecture.inputs(), optimizer, clipped=index % 3 == 0)
    model, cluster = distributed(architecture, 1, "single")
    with cluster:
        losses = trained(model, architecture.inputs(), optimizer, clipped=index % 3 == 0)
    assert all(identical(a, b) for a, b in zip(expected, losses, strict=True))
    assert_equal(plain, model)
