"""Devices launch their layers in the plan's order, whatever the order of the code; numbers stay the same."""

from itertools import cycle
from typing import Any

import pytest
import torch
from architectures import HELD_IN, OTHERS, Architecture
from order.interleaved import distribute, interleaved, is_layer
from run.launch.equal_layers import WHERE, Net, X, two_chains
from run.launched import LAUNCHERS, assert_planned, launched_on, runtime_of
from same import ROUNDING, assert_same, step
from torch import Tensor, nn

import baechi
from baechi import zoo
from baechi.order import LaunchOrder, waiting_layers


def shuffled_from_behind(graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
    """Layers dealt to the devices in turn; each device runs what the code reaches last as early as it can."""
    device_of = {}
    for members, device in zip(graph.groups().values(), cycle(cluster.names), strict=False):
        device_of.update(dict.fromkeys(members, device))
    parents = {name: set(graph.predecessors(name)) & set(graph.placed()) for name in graph.placed()}
    order: list[str] = []
    while len(order) < len(parents):
        ready = [name for name in parents if name not in order and parents[name] <= set(order)]
        order.append(ready[-1])
    return baechi.Plan(graph, cluster, device_of, tuple(order))


@pytest.mark.full
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", zoo.MODELS)
def test_zoo(name: str, training: bool) -> None:
    """By random plans, and by one that runs everything as late as it can: all in order, nothing forced.

    Inception's activations write in place, so it runs in the code's order from each of them on.
    """
    model, given = zoo.MODELS[name]("small")
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0  # a layer that draws does not wait
    names = ("source", "target") if len(given) == 2 else ("images",)
    inputs = dict(zip(names, given, strict=True))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    graph = baechi.profile(model, inputs, cluster=baechi.Cluster.virtual(1), training=training)
    reference = step(model, inputs, training=training)
    placers: tuple[Any, ...] = ("random:0", "random:1", shuffled_from_behind)
    for placer, reorder, devices in zip(placers, cycle(LAUNCHERS), (2, 3, 3), strict=False):
        model.load_state_dict(before)
        cluster = baechi.Cluster.virtual(devices, memory="1GiB")
        plan = baechi.place(graph, cluster, placer)
        baechi.assign(model, plan, reorder=reorder)
        with cluster:
            result = step(model, inputs, training=training)
            counters = baechi.last_step(model).counters
        assert_same(reference, result, tolerance=ROUNDING)
        must = waiting_layers(LaunchOrder.of(plan))
        if name != "inception-v3":
            assert_planned(model)
            assert counters["forced"] == 0 and counters["deferred"] >= len(must) > 0
            assert (counters["threads"] > 0) == (reorder == "threads")
        baechi.restore(model)


def architecture(name: str) -> Architecture:
    """The architecture of that name."""
    return next(a for a in (*HELD_IN, *OTHERS) if a.name == name)


@pytest.mark.full
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", ["t5", "bart", "clip", "whisper"])
def test_two_towers(name: str, training: bool) -> None:
    """Encoders and decoders of the transformers library: layers wait, and CLIP's are all in order.

    T5 writes into a mask, BART drops units, Whisper is given a cache: what waits then launches.
    """
    given = architecture(name)
    graph = baechi.profile(
        given.build(), given.inputs(), cluster=baechi.Cluster.virtual(1), training=training
    )
    reference = step(given.build(), given.inputs(), training=training)
    for placer, reorder in (("random:0", "host"), ("random:1", "threads")):
        cluster = baechi.Cluster.virtual(3, memory="1GiB")
        model = baechi.assign(given.build(), baechi.place(graph, cluster, placer), reorder=reorder)
        with cluster:
            result = step(model, given.inputs(), training=training)
        assert_same(reference, result, tolerance=ROUNDING)
        if name == "clip":
            assert runtime_of(model).counts["deferred"] > 0
            assert_planned(model)


def test_layers_that_are_called_or_not() -> None:
    """A branch that is taken in some steps only holds up nobody: all others keep the plan's order."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.taken = True
            for name in ("first", "branch", "second", "third", "last"):
                setattr(self, name, nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            k = self.branch(x) if self.taken else x
            second = self.second(k)
            result: Tensor = self.last(h + second + self.third(x))
            return result

    inputs = (torch.ones(2, 8),)
    torch.manual_seed(0)
    model = Branches()
    expected = []
    for taken in (True, False):
        model.taken = taken
        expected.append(model(*inputs))
    model.taken = True
    where = {"first": 0, "branch": 0, "second": 0, "third": 0, "last": 1}
    order = ["branch", "third", "first", "second", "last"]
    graph = baechi.profile(model, inputs, cluster=baechi.Cluster.virtual(1))
    cluster = baechi.Cluster.virtual(2)
    baechi.assign(model, interleaved(graph, cluster, where, order), reorder=True)
    assert [name for name in graph.placed() if is_layer(graph, name)][1] == "branch"
    with cluster:
        for taken, one in zip((True, False), expected, strict=True):
            model.taken = taken
            assert torch.equal(model(*inputs), one)
            skipped = [] if taken else ["branch"]
            assert launched_on(model, "cpu:0") == [name for name in order[:4] if name not in skipped]
            assert runtime_of(model).forced == []


def test_counters_are_those_of_the_last_step() -> None:
    """A step without reordering after one with it has nothing deferred, forced or launched late."""
    model = Net(two_chains, "abc")
    with distribute(model, X, WHERE, "bac"):
        model(**X)
        assert baechi.last_step(model).counters["deferred"] == 2
        with baechi.reordering(model, False):
            model(**X)
        counters = baechi.last_step(model).counters
    assert {name: counters.get(name, 0) for name in ("deferred", "forced", "threads")} == {
        "deferred": 0, "forced": 0, "threads": 0
    }  # fmt: skip
    assert runtime_of(model).launched == []
