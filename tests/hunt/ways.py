"""How a model is run: by which plan, launched by what, and what its caller does around it.

A later capability joins by a function in `RUNNERS` and a name in `draw`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from torch import nn

import baechi
from baechi.split.rewrite import sizes_of
from baechi.verbs.split.verb import with_layers_split

from .world import World

PLACERS = ("m-topo", "m-etf", "m-topo", "m-etf", "m-sct", "even", "round-robin")
"""The real ones that are quick."""

CALLERS = ("plain", "target", "copies", "accumulates", "alternates", "rows", "optimizer", "inference")
"""What a caller does besides; see `steps`."""


@dataclass(frozen=True)
class Way:
    """A way to run a model.

    Args:
        placer: makes the plan.
        devices: how many.
        reorder: as `assign` takes it.
        training: whether it trains.
        inside: whether it is called inside of `with cluster:`, where the cluster is emulated.
        caller: what the caller does.
        steps: how many.
        runner: what distributes the model; a name in `RUNNERS`.
        full: whether every call takes the full path.
    """

    placer: str = "random:0"
    devices: int = 2
    reorder: Any = "host"
    training: bool = True
    inside: bool = True
    caller: str = "plain"
    steps: int = 2
    runner: str = "planned"
    full: bool = False


Runner = Callable[[nn.Module, baechi.LayerGraph, Way, World], tuple[nn.Module, baechi.Cluster]]


def _planned(
    model: nn.Module, graph: baechi.LayerGraph, way: Way, world: World
) -> tuple[nn.Module, baechi.Cluster]:
    cluster = world.cluster(way.devices)
    plan = baechi.place(graph, cluster, way.placer)
    return baechi.assign(model, plan, reorder=way.reorder), cluster


def _split(
    model: nn.Module, graph: baechi.LayerGraph, way: Way, world: World
) -> tuple[nn.Module, baechi.Cluster]:
    """Up to three layers are split first, along any dimension; those that other code reads stay whole."""
    chance, layers = Random(f"{way.placer} {way.devices}"), {}
    modules = sorted({graph.module_of(name) for name, costs in graph.placed_costs() if costs.splits})
    for module in chance.sample(modules, k=min(3, len(modules))):
        try:
            dim, size = chance.choice(sorted(sizes_of(graph, module).items()))
            asked = layers | {module: {dim: min(size, chance.choice((2, 3, 4)))}}
            made = with_layers_split(graph, asked, None)
        except baechi.PlanError:
            continue
        layers, split = asked, made
    return _planned(model, split if layers else graph, way, world)


RUNNERS: dict[str, Runner] = {"planned": _planned, "split": _split}


def draw(seed: int) -> tuple[Way, ...]:
    """The ways of one case; they differ by their plans and launchers only, so that they share a capture.

    Args:
        seed: equal seeds give equal ways.
    """
    chance = Random(seed)
    training, caller = chance.random() < 0.6, chance.choice(("plain", "plain", "plain", *CALLERS))
    ways = []
    for reorder in chance.sample((False, "host", "host", "threads"), 2):
        real = chance.random() < 0.1
        placer = chance.choice(PLACERS) if real else f"random:{chance.randrange(1000)}"
        placer = "auto" if seed % 200 == 7 else placer
        ways.append(Way(placer, chance.choice((2, 3, 3)), reorder, training, chance.random() < 0.9, caller))
    if Random(f"full path {seed}").random() < 0.2:  # beside the first way, which may take the short one
        ways[1] = replace(ways[0], full=True)
    if Random(f"split {seed}").random() < 0.2:
        ways[0] = replace(ways[0], runner="split")
    return tuple(ways)
