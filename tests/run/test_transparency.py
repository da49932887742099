"""Promise 1: the same numbers as on one device, for any placement."""

import pytest
import torch
from architectures import HELD_IN, OTHERS, OWN, Architecture
from same import assert_same, step
from torch import nn

import baechi
from baechi import zoo

PLACERS = ("m-topo", "m-etf", "random:0", "random:1", "random:2")
ROUNDING = 2e-5
"""What single precision loses where three or more gradients are summed in another order."""


def our_own(name: str, **options: object) -> Architecture:
    """A model of the zoo as an architecture."""

    def build() -> nn.Module:
        return zoo.MODELS[name]("small", **options)[0]

    def inputs() -> dict[str, torch.Tensor]:
        given = zoo.MODELS[name]("small")[1]
        return dict(zip(("source", "target") if len(given) == 2 else ("images",), given, strict=True))

    return Architecture(name, build, inputs)


ZOO = tuple(our_own(name) for name in zoo.MODELS)


def distributed(
    architecture: Architecture, n: int, placer: str, training: bool
) -> tuple[nn.Module, baechi.Cluster]:
    model = architecture.build().train(training)
    cluster = baechi.Cluster.virtual(n, memory="1GiB")
    baechi.distribute(model, architecture.inputs(), cluster=cluster, placer=placer)
    return model, cluster


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", [*ZOO, *HELD_IN], ids=lambda a: a.name)
def test_held_in(architecture: Architecture, training: bool) -> None:
    """On 1 to 4 devices, by every placer, with a random placement using every device."""
    reference = step(architecture.build(), architecture.inputs(), training=training)
    for n in (1, 2, 3, 4):
        for placer in PLACERS:
            model, cluster = distributed(architecture, n, placer, training)
            if placer.startswith("random"):
                assert len(baechi.plan_of(model).devices_used) == n
            with cluster:
                result = step(model, architecture.inputs(), training=training)
            assert_same(reference, result, tolerance=0.0 if n == 1 else ROUNDING)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", OTHERS, ids=lambda a: a.name)
def test_others(architecture: Architecture, training: bool) -> None:
    """On 3 devices, by one random placement and m-TOPO."""
    reference = step(architecture.build(), architecture.inputs(), training=training)
    for placer in ("random:0", "m-topo"):
        model, cluster = distributed(architecture, 3, placer, training)
        with cluster:
            result = step(model, architecture.inputs(), training=training)
        assert_same(reference, result, tolerance=ROUNDING)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", OWN, ids=lambda a: a.name)
def test_hard_features(architecture: Architecture, training: bool) -> None:
    """No tensor of these has more than two uses on different devices: gradients are exact, too."""
    reference = step(architecture.build(), architecture.inputs(), training=training)
    for placer in PLACERS:
        model, cluster = distributed(architecture, 3, placer, training)
        with cluster:
            result = step(model, architecture.inputs(), training=training)
        assert_same(reference, result)


@pytest.mark.parametrize("architecture", [*ZOO, *HELD_IN], ids=lambda a: a.name)
def test_gradients_in_double_precision(architecture: Architecture) -> None:
    """What single precision rounds differently agrees to 1e-10 in double: the order is all that differs."""
    inputs = {n: v.double() if v.is_floating_point() else v for n, v in architecture.inputs().items()}
    reference = step(architecture.build().double(), inputs, training=True)
    for placer in ("random:0", "random:1"):
        model = architecture.build().double().train()
        cluster = baechi.Cluster.virtual(4, memory="1GiB")
        baechi.distribute(model, inputs, cluster=cluster, placer=placer)
        with cluster:
            assert_same(reference, step(model, inputs, training=True), tolerance=1e-10)
