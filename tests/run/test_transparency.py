"""Promise 1: the same numbers as on one device, for any placement."""

from typing import Any

import pytest
from architectures import HELD_IN, OTHERS, OWN, Architecture
from architectures.graphs import assert_each_is_owned_once, assert_weights_add_up
from architectures.of_zoo import ZOO
from matrix import in_turn_by_tier, named
from same import ROUNDING, Result, assert_same, step

import baechi
from baechi.torchlib.tensors.pytree import map_tensors

pytestmark = pytest.mark.default_cases(2)

PLACERS = ("m-topo", "m-etf", "random:0", "random:1", "random:2")
PLACED = (
    (1, "m-etf"),
    (2, "m-topo"),
    (2, "random:0"),
    (3, "m-etf"),
    (3, "random:1"),
    (4, "m-topo"),
    (4, "random:2"),
)
MODES = {"training": True, "inference": False}


def placed(row: Architecture, training: bool) -> list[tuple[int, str]]:
    """Three of the placements for each architecture and mode, so that all seven go round."""
    first = 3 * (2 * [*ZOO, *HELD_IN].index(row) + training)
    return [PLACED[(first + place) % len(PLACED)] for place in range(3)]


def graph_of(architecture: Architecture, training: bool) -> baechi.LayerGraph:
    cluster = baechi.Cluster.virtual(1)
    return baechi.profile(architecture.build(), architecture.inputs(), cluster=cluster, training=training)


def run_on(architecture: Architecture, graph: baechi.LayerGraph, n: int, placer: str) -> Result:
    """One step on n emulated devices."""
    cluster = baechi.Cluster.virtual(n, memory="1GiB")
    plan = baechi.place(graph, cluster, placer)
    if placer.startswith("random"):
        assert len(plan.devices_used) == min(n, len(graph.groups(apart=True)))
    model = baechi.assign(architecture.build(), plan)
    with cluster:
        return step(model, architecture.inputs(), training=graph.training)


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", [*ZOO, *HELD_IN], ids=lambda a: a.name)
@pytest.mark.parametrize("placements", ["in turn", pytest.param("all", marks=pytest.mark.nightly)])
def test_held_in(architecture: Architecture, training: bool, placements: str) -> None:
    """On 1 to 4 devices, by placements in turn; a random one uses every device."""
    reference = step(architecture.build(), architecture.inputs(), training=training)
    model = architecture.build().train(training)
    baechi.distribute(model, architecture.inputs(), cluster=baechi.Cluster.virtual(3), placer="random:3")
    graph = baechi.plan_of(model).graph
    result = step(model, architecture.inputs(), training=training)  # and outside of `with`
    assert_same(reference, result, tolerance=ROUNDING)
    for n, placer in PLACED if placements == "all" else placed(architecture, training):
        result = run_on(architecture, graph, n, placer)
        assert_same(reference, result, tolerance=0.0 if n == 1 else ROUNDING)


@pytest.mark.parametrize(("architecture", "mode"), in_turn_by_tier(OTHERS, list(MODES)), ids=named)
def test_others(architecture: Architecture, mode: str) -> None:
    """On 3 devices: the model that was captured itself, and others by its graph; which has all weights."""
    training = MODES[mode]
    reference = step(architecture.build(), architecture.inputs(), training=training)
    model = architecture.build().train(training)
    cluster = baechi.Cluster.virtual(3)
    baechi.distribute(model, architecture.inputs(), cluster=cluster, placer="random:0")
    graph = baechi.plan_of(model).graph
    assert_weights_add_up(graph, architecture.build())
    assert_each_is_owned_once(graph, architecture.build())
    with cluster:
        result = step(model, architecture.inputs(), training=training)
    assert_same(reference, result, tolerance=ROUNDING)
    for placer in ("random:1", "m-topo"):
        result = run_on(architecture, graph, 3, placer)
        assert_same(reference, result, tolerance=ROUNDING)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", OWN, ids=lambda a: a.name)
def test_hard_features(architecture: Architecture, training: bool) -> None:
    """Where no tensor has three uses or more, gradients are exact, too."""
    reference = step(architecture.build(), architecture.inputs(), training=training)
    graph = graph_of(architecture, training)
    for placer in PLACERS:
        assert_same(reference, run_on(architecture, graph, 3, placer))


DOUBLE = [a for a in (*ZOO, *HELD_IN) if a.name != "mixtral"]
"""Torch multiplies groups of matrices in single precision only."""


@pytest.mark.default_cases(2)
@pytest.mark.parametrize(
    ("architecture", "placer"),
    in_turn_by_tier(DOUBLE, ["random:0", "random:1"]),
    ids=named,
)
def test_gradients_in_double_precision(architecture: Architecture, placer: str) -> None:
    """What single precision rounds differently agrees to 1e-10 in double: only the order differs."""

    def doubled(value: Any) -> Any:
        return map_tensors(lambda t: t.double() if t.is_floating_point() else t, value)

    double = Architecture(
        architecture.name,
        lambda: architecture.build().double(),
        lambda: doubled(architecture.inputs()),
    )
    reference = step(double.build(), double.inputs(), training=True)
    graph = graph_of(double, training=True)
    assert_same(reference, run_on(double, graph, 4, placer), tolerance=1e-10)
