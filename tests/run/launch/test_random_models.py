"""Random models by random plans: right, in order, and none hangs."""

import os
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Any

import pytest
import torch
from order.drives import random_topological
from run.launched import launched_on, runtime_of
from same import ROUNDING, Result, assert_same, step
from torch import Tensor, nn

import baechi
from baechi.order import waiting_layers

pytestmark = pytest.mark.full


@dataclass(frozen=True)
class Line:
    """A line of a random model's code.

    Args:
        what: what it does.
        reads: the values that it reads, by number.
        layer: the layer that it calls, by number, if it calls one.
    """

    what: str
    reads: tuple[int, ...]
    layer: int = 0


class RandomModel(nn.Module):
    """Tiny layers, and glue of every kind, in a random order; its outputs are what nothing else reads."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, chance = seed, Random(seed)
        self.layers = nn.ModuleList()
        self.lines: list[Line] = []
        widths = [4]
        for _ in range(chance.randint(5, 14)):
            self._add_line(chance, widths)
        if not list(self.parameters()):
            self.lines.append(Line("layer", (0,), self._layer(nn.Linear(4, 4))))
            widths.append(4)
        read = {number for line in self.lines for number in line.reads}
        self.outputs = [number for number in range(1, len(widths)) if number not in read]

    def _add_line(self, chance: Random, widths: list[int]) -> None:
        kinds = ["layer"] * 6 + ["add", "cat"] * 3 + ["again", "scale", "half"]
        kinds += ["norm", "drop", "in place"] if self.seed % 3 == 0 else []
        what, first = chance.choice(kinds), chance.randrange(len(widths))
        alike = [number for number, width in enumerate(widths) if width == widths[first]]
        second = chance.choice(alike)
        width = widths[first]
        if what == "layer":
            self.lines.append(Line(what, (first,), self._layer(nn.Linear(width, 4))))
            width = 4
        elif what == "norm":
            self.lines.append(Line("layer", (first,), self._layer(nn.BatchNorm1d(width))))
        elif what == "drop":
            self.lines.append(Line("layer", (first,), self._layer(nn.Dropout(0.5))))
        elif what == "again":
            fitting = [line for line in self.lines if line.what == "layer" and line.reads[0] in alike]
            if not fitting:
                return
            self.lines.append(line := Line("layer", (second,), chance.choice(fitting).layer))
            width = getattr(self.layers[line.layer], "out_features", width)
        elif what == "cat":
            other = chance.randrange(len(widths))
            width += widths[other]
            if width > 16:
                return
            self.lines.append(Line(what, (first, other)))
        elif what == "half":
            if width % 2:
                return
            self.lines.append(Line(what, (first,)))
            width //= 2
        else:
            self.lines.append(Line(what, (first,) if what == "scale" else (first, second)))
        widths.append(width)

    def is_plain(self, *, training: bool) -> bool:
        """Whether nothing in it writes memory or draws numbers."""
        kinds = (nn.BatchNorm1d, nn.Dropout) if training else (nn.BatchNorm1d,)
        writes = any(line.what == "in place" for line in self.lines)
        return not writes and not any(isinstance(layer, kinds) for layer in self.layers)

    def _layer(self, layer: nn.Module) -> int:
        self.layers.append(layer)
        return len(self.layers) - 1

    def forward(self, x: Tensor) -> list[Tensor]:
        values = [x]
        for line in self.lines:
            given = [values[number] for number in line.reads]
            if line.what == "layer":
                values.append(self.layers[line.layer](given[0]))
            elif line.what == "add":
                values.append(given[0] + given[1])
            elif line.what == "cat":
                values.append(torch.cat(given, dim=1))
            elif line.what == "scale":
                values.append(torch.sigmoid(given[0]) * 2)
            elif line.what == "half":
                values.append(given[0].chunk(2, dim=1)[1])
            else:
                values.append((given[0] * 1.5).add_(given[1]))
        return [values[number] for number in self.outputs]


def random_plan(chance: Random, graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
    """A random device for each group, and a random order."""
    groups = graph.groups(apart=True).values()
    device_of = {n: d for g in groups for d in [chance.choice(cluster.names)] for n in g}
    parents = {n: tuple([p for p in graph.predecessors(n) if p in device_of]) for n in device_of}
    return baechi.Plan(graph, cluster, device_of, random_topological(chance, parents))


def drive(model: RandomModel, plan: baechi.Plan, reorder: Any, reference: Result) -> int:
    """One step of a model by a plan, checked; returns how much waited."""
    training, inputs = plan.graph.training, {"x": torch.linspace(-1, 1, 12).view(3, 4)}
    baechi.assign(model, plan, reorder=reorder)
    runtime = runtime_of(model)
    with plan.cluster:
        result = step(model, inputs, training=training)
    assert_same(reference, result, tolerance=ROUNDING)
    several = len(plan.devices_used) > 1
    waits = bool(reorder) and several and bool(waiting_layers(runtime.order))
    if not model.is_plain(training=training):  # then some of what waits launches before its turn
        assert waits or not runtime.counts.get("deferred", 0)
        baechi.restore(model)
        return 0
    assert (runtime.counts.get("deferred", 0) > 0) == waits
    if waits:
        queues = runtime.order.queues()
        assert {device: launched_on(model, device) for device in queues} == queues
        assert [str(one) for one in runtime.forced] == []
    baechi.restore(model)
    return int(waits)


MODELS, PLANS = range(int(os.environ.get("BAECHI_DRIVES", "24"))), 8
"""`BAECHI_DRIVES=70` drives over a thousand steps."""


def test_random_drives() -> None:
    """Hundreds of steps of random models by random plans: right, in order, and none hangs."""
    steps = waited = 0
    for seed in MODELS:
        chance = Random(seed)
        torch.manual_seed(seed)
        model = RandomModel(seed)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        inputs = {"x": torch.linspace(-1, 1, 12).view(3, 4)}
        for training in (True, False):
            graph = baechi.profile(model, inputs, cluster=baechi.Cluster.virtual(1), training=training)
            reference = step(model, inputs, training=training)
            for reorder in islice(cycle(("host", "threads", "host", "threads", False)), PLANS):
                model.load_state_dict(state)
                cluster = baechi.Cluster.virtual(chance.choice([1, 2, 2, 3, 3]))
                waited += drive(model, random_plan(chance, graph, cluster), reorder, reference)
                steps += 1
            model.load_state_dict(state)
    assert steps == len(MODELS) * 2 * PLANS > 300
    assert waited > steps // 4
