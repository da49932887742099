"""Promise 1 on devices that torch keeps apart: the same numbers as on one of them, and nothing unordered.

Each architecture runs by one of the ways in which every two choices meet: placer and home of the inputs,
home and launcher, ... In the nightly tier every architecture runs every way (hours on one core).
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from architectures import HELD_IN, OTHERS, OWN, Architecture
from matrix import pairs
from same import ROUNDING, Result, assert_same

import baechi
from accelerator import NAMES, ToyMachine
from baechi import zoo

from .devices import cluster, graph_of, step, whole

pytestmark = pytest.mark.full

PLACERS = ("random:0", "m-etf", "random:1", "m-topo", "m-sct")
LAUNCHERS: tuple[Any, ...] = (False, "host", "threads")
HOMES = ("toy:0", "", "toy:3")
"""Where inputs lie: on the first device, on the host, on one that the model does not use."""

STEPS = 2
LEFT_OUT = {
    ("torch_transformer", False): "its fast path makes nested tensors, which the test accelerator has not",
}


@dataclass(frozen=True)
class Way:
    """How a model is distributed and called."""

    placer: str
    reorder: Any
    home: str
    training: bool
    late: bool
    devices: int


def zoo_model(name: str) -> Architecture:
    """A model of the zoo as an architecture."""

    def inputs() -> dict[str, torch.Tensor]:
        given = zoo.MODELS[name]("small")[1]
        return dict(zip(("source", "target") if len(given) == 2 else ("images",), given, strict=True))

    return Architecture(name, lambda: zoo.MODELS[name]("small")[0], inputs)


ROWS = (*OWN, *HELD_IN, *OTHERS[::3], *[zoo_model(name) for name in zoo.MODELS])


CHOICES = PLACERS, LAUNCHERS, HOMES, (True, False), (True, False), (2, 3, 4)
WAYS = [Way(*way) for way in pairs(*CHOICES)]
"""They go round with the number of the architecture."""


def test_every_way_has_a_turn() -> None:
    """There are more architectures than ways."""
    assert len(ROWS) >= len(WAYS)


@functools.cache
def reference(number: int, training: bool) -> list[Result]:
    """What the plain model leaves behind on one device, step by step."""
    row, machine = ROWS[number], ToyMachine.get()
    machine.restart(late=False)
    model = whole(row.build)
    return [step(model, row.inputs(), training=training) for _ in range(STEPS)]


@functools.cache
def graph(number: int, training: bool) -> baechi.LayerGraph:
    """The layer graph of an architecture."""
    return graph_of(ROWS[number].build(), ROWS[number].inputs(), training)


@pytest.mark.parametrize("number", range(len(ROWS)), ids=lambda number: ROWS[number].name)
@pytest.mark.parametrize("ways", ["one", pytest.param("all", marks=pytest.mark.nightly)])
def test_same_numbers(toy: ToyMachine, number: int, ways: str) -> None:
    """Two steps, one of them warm; every access is ordered, every memory recorded."""
    row, every = ROWS[number], ways == "all"
    all_ways = (Way(*way) for way in itertools.product(*CHOICES))
    for seed, way in enumerate(all_ways if every else [WAYS[number % len(WAYS)]]):
        if (row.name, way.training) in LEFT_OUT:
            continue
        expected = reference(number, way.training)
        captured = way.training or not every  # else captured for training, and evaluated
        plan = baechi.place(graph(number, captured), cluster(*NAMES[: way.devices]), way.placer)
        model = baechi.assign(row.build(), plan, reorder=way.reorder)
        toy.restart(seed=seed, late=way.late)
        for one in expected:
            found = step(model, row.inputs(), training=way.training, home=way.home)
            assert_same(one, found, tolerance=ROUNDING)
        assert not toy.faults(), (way, toy.faults()[:3])


VALUES = {"nonzero", "masked_select", "_unique2", "index.Tensor_out", "repeat_interleave.Tensor"}
"""How much they return depends on values: the host waits for a GPU, too. (`index`: by a mask.)"""

LACKS = {"_ctc_loss_backward", "_embedding_bag", "_embedding_bag_backward", "mul.out"}
"""4 of the 137 operators that the architectures run: torch cannot say what they return, or only CUDA's."""


def test_what_the_device_lacks(toy: ToyMachine) -> None:
    """Kernels for which the host had to wait: all others' results were foreseen."""
    assert {name.removeprefix("aten::") for name in toy.unforeseen()} <= VALUES | LACKS
