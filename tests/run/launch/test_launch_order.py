"""Devices launch their layers in the plan's order, whatever the order of the code; numbers stay the same."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Any

import pytest
import torch
from architectures import HELD_IN, OTHERS, Architecture
from order.drives import random_topological
from order.interleaved import distribute, interleaved, is_layer, layers_on
from run.launched import launched_on, runtime_of
from same import Result, assert_same, step
from torch import Tensor, nn

import baechi
from baechi import zoo
from baechi.order import LaunchOrder, waiting_layers

ROUNDING = 2e-5
"""What single precision loses where three or more gradients are summed in another order."""

LAUNCHERS = ("host", "threads")


def assert_planned(model: nn.Module) -> None:
    """In the last step each device launched what the plan has on it, in its order; nothing was forced."""
    plan = baechi.plan_of(model)
    for device in plan.cluster.names:
        assert launched_on(model, device) == layers_on(plan, device)
    assert [str(one) for one in runtime_of(model).forced] == []


# --- models of the zoo


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


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", zoo.MODELS)
def test_zoo(name: str, training: bool) -> None:
    """By random plans, and by one that runs everything as late as it can: all in order, nothing forced."""
    model, given = zoo.MODELS[name]("small")
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
        assert_planned(model)
        must = waiting_layers(LaunchOrder.of(plan))
        assert counters["forced"] == 0 and counters["deferred"] >= len(must) > 0
        assert (counters["threads"] > 0) == (reorder == "threads")
        baechi.restore(model)


# --- models of other libraries


def architecture(name: str) -> Architecture:
    """The architecture of that name."""
    return next(a for a in (*HELD_IN, *OTHERS) if a.name == name)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", ["t5", "bart", "clip", "whisper"])
def test_two_towers(name: str, training: bool) -> None:
    """Encoders and decoders of the transformers library: all in order, and no value is ever needed early."""
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
        assert_planned(model)
        assert runtime_of(model).counts["deferred"] > 0


# --- an encoder, and a decoder that need not wait for it


class Translator(nn.Module):
    """The code runs an encoder, then a part of a decoder that does not read it, then joins them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        for name in ("e0", "e1", "e2", "e3", "d0", "d1", "d2", "d3", "join"):
            setattr(self, name, nn.Linear(width, width))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        encoded = self.e3(self.e2(self.e1(self.e0(source))))
        decoded = self.d3(self.d2(self.d1(self.d0(target))))
        result: Tensor = self.join(encoded + decoded)
        return result


DEVICES = {"e0": 0, "e1": 0, "d2": 0, "d3": 0, "join": 0, "d0": 1, "d1": 1, "e2": 1, "e3": 1}
EARLY_DECODER = ("e0", "d0", "e1", "d1", "e2", "d2", "e3", "d3", "join")
SIDE_BY_SIDE = (("e0", "d0"), ("e1", "d1"), ("e2", "d2"), ("e3", "d3"))


def slow_cluster() -> baechi.Cluster:
    """Two devices that compute for half a second where links and the host take microseconds."""
    devices = [
        baechi.Device(name, "slow", 10**9, flops_per_s={"float32": 1e6}, bytes_per_s=1e6)
        for name in ("cpu:0", "cpu:1")
    ]
    return baechi.Cluster(tuple(devices), link=baechi.Link(1e-6, 1e9), emulated=True, launch_s=1e-9)


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_the_planned_overlap_is_measured(training: bool, reorder: str) -> None:
    """A decoder that starts early runs beside the encoder: as planned, sooner than in the code's order."""
    cluster, model = slow_cluster(), Translator().train(training)
    inputs = (torch.ones(64, 64), torch.ones(64, 64))
    graph = baechi.profile(model, inputs, cluster=cluster, training=training)
    plan = interleaved(graph, cluster, DEVICES, EARLY_DECODER)
    baechi.assign(model, plan, reorder=reorder)
    comparison = baechi.compare(model, inputs)
    assert comparison.equal and comparison.gradient_difference == 0 and comparison.in_plan_order
    one, off, on = comparison.ran
    assert on.launched == {"cpu:0": ("e0", "e1", "d2", "d3", "join"), "cpu:1": ("d0", "d1", "e2", "e3")}
    assert on.forced == () and on.deferred == 2  # `e2` and `e3`, until `d1`
    assert (one.deferred, off.deferred) == (0, 0)
    assert one.timeline is not None and off.timeline is not None and on.timeline is not None

    for timeline in (plan.timeline, on.timeline):
        compute = [s for s in timeline.spans if s.kind == "compute" and s.phase == "forward" and s.layer]
        spans = {span.layer: span for span in compute}
        for first, second in SIDE_BY_SIDE:
            together = min(spans[first].end_s, spans[second].end_s)
            together -= max(spans[first].start_s, spans[second].start_s)
            assert together > 0.99 * (spans[first].end_s - spans[first].start_s)
            assert spans[first].where != spans[second].where
    # four layers one after the other and the last one, in place of nine; the sum is a tenth of one
    assert on.timeline.makespan_s / off.timeline.makespan_s == pytest.approx(5.1 / 9.1, rel=0.01)
    assert off.timeline.makespan_s == pytest.approx(one.timeline.makespan_s, rel=1e-4)
    off_by = abs(on.timeline.makespan_s / plan.timeline.makespan_s - 1)
    assert off_by < (0.015 if training else 1e-4)  # in training the loss is nobody's layer


# --- random models


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
        chance = Random(seed)
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
        kinds = ["layer"] * 6 + ["add", "cat"] * 3 + ["again", "scale", "half", "norm", "drop", "in place"]
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
    device_of = {n: d for g in graph.groups().values() for d in [chance.choice(cluster.names)] for n in g}
    parents = {n: tuple([p for p in graph.predecessors(n) if p in device_of]) for n in device_of}
    return baechi.Plan(graph, cluster, device_of, random_topological(chance, parents))


def drive(model: nn.Module, plan: baechi.Plan, reorder: Any, reference: Result) -> int:
    """One step of a model by a plan, checked; returns how much waited."""
    training, inputs = plan.graph.training, {"x": torch.linspace(-1, 1, 12).view(3, 4)}
    baechi.assign(model, plan, reorder=reorder)
    runtime = runtime_of(model)
    with plan.cluster:
        result = step(model, inputs, training=training)
    assert_same(reference, result, tolerance=ROUNDING)
    several = len(plan.devices_used) > 1
    waits = bool(reorder) and several and bool(waiting_layers(runtime.order))
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


# --- switches


def distributed(reorder: Any = True) -> tuple[nn.Module, baechi.Cluster, tuple[Tensor, ...]]:
    """A translator whose plan lets the decoder start early, its devices, and inputs."""
    torch.manual_seed(0)
    model, inputs = Translator(8), (torch.ones(2, 8), torch.ones(2, 8))
    return model, distribute(model, inputs, DEVICES, EARLY_DECODER, reorder=reorder), inputs


def order_of_spans(model: nn.Module, device: str) -> list[str]:
    """The layers that a device computed in the last step, as measured."""
    spans = baechi.last_step(model).spans
    return [s.layer for s in spans if s.where == device and s.kind == "compute" and s.layer]


IN_CODE_ORDER, IN_PLAN_ORDER = ["e2", "e3", "d0", "d1"], ["d0", "d1", "e2", "e3"]


def test_reordering_is_on_by_default() -> None:
    """Without being told, a distributed model launches in the plan's order."""
    model, cluster, inputs = distributed()
    with cluster:
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_PLAN_ORDER
    assert baechi.last_step(model).counters["deferred"] == 2


def test_reorder_false() -> None:
    """With `reorder=False` layers launch as the code reaches them, and nothing waits."""
    model, cluster, inputs = distributed(reorder=False)
    with cluster:
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_CODE_ORDER
    assert runtime_of(model).counts == {}


@pytest.mark.parametrize("value", ["0", "false", "OFF"])
def test_the_environment_switches_it_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `BAECHI_REORDER=0` nothing waits; it is read at each step."""
    model, cluster, inputs = distributed()
    monkeypatch.setenv("BAECHI_REORDER", value)
    with cluster:
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_CODE_ORDER
        monkeypatch.setenv("BAECHI_REORDER", "1")
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_PLAN_ORDER


@pytest.mark.parametrize("reorder", [*LAUNCHERS, True])
def test_the_context_manager_switches_it_off(reorder: Any) -> None:
    """Inside `with reordering(model, False)` nothing waits; after it all is as before."""
    model, cluster, inputs = distributed(reorder)
    with cluster:
        for on, expected in ((False, IN_CODE_ORDER), (True, IN_PLAN_ORDER)):
            with baechi.reordering(model, on):
                model(*inputs)
                assert order_of_spans(model, "cpu:1") == expected
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_PLAN_ORDER
    threads = baechi.last_step(model).counters["threads"]
    assert threads == (2 if reorder == "threads" else 0)


def test_the_context_manager_switches_it_on() -> None:
    """A model that does not reorder does inside `with reordering(model, True)`, also where a step raises."""
    model, cluster, inputs = distributed(reorder=False)
    with cluster:
        with pytest.raises(TypeError), baechi.reordering(model, True):
            model(*inputs, "one too many")
        with baechi.reordering(model, True):
            model(*inputs)
            assert order_of_spans(model, "cpu:1") == IN_PLAN_ORDER
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_CODE_ORDER


# --- random numbers


class Dropping(nn.Module):
    """Two chains that draw random numbers, in layers and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))
        self.drop_a, self.drop_b = nn.Dropout(0.5), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.drop_a(self.a(x)) + torch.randn(16)
        second = nn.functional.dropout(self.drop_b(self.b(x)), 0.2, self.training)
        result: Tensor = self.c(first) * torch.bernoulli(second.detach().sigmoid()) + torch.rand_like(second)
        return result


@pytest.mark.parametrize("reorder", [*LAUNCHERS, False])
def test_the_same_units_are_dropped(reorder: Any) -> None:
    """Random numbers are those of the plain model, and so is the generator's state afterwards."""
    torch.manual_seed(0)
    model = Dropping()
    inputs = {"x": torch.ones(4, 16)}
    reference = step(model, inputs, training=True)
    state = torch.get_rng_state()
    where = {"a": 0, "drop_a": 0, "b": 0, "drop_b": 1, "c": 1}
    cluster = distribute(model, inputs, where, ["b", "drop_b", "a", "drop_a", "c"], reorder=reorder)
    with cluster:
        result = step(model, inputs, training=True)
    assert_same(reference, result)
    assert torch.equal(torch.get_rng_state(), state)
    if reorder is not False:
        assert_planned(model)


# --- values that the code needs


def needs_a_value(self: Any, x: Tensor) -> Tensor:
    """The code looks at the output of a layer that waits."""
    h = self.a(x)
    if h.sum() > 1e9:  # here
        h = -h
    result: Tensor = self.c(h + self.b(x))
    return result


def needs_a_number(self: Any, x: Tensor) -> Tensor:
    """The code reads a number."""
    h = self.a(x)
    scale = h.abs().max().item()  # here
    result: Tensor = self.c(h / scale + self.b(x))
    return result


def needs_it_inside_a_function(self: Any, x: Tensor) -> Tensor:
    """The code hands a value to a function that no mode sees."""
    h: Tensor = Double.apply(self.a(x))  # here
    result: Tensor = self.c(h + self.b(x))
    return result


class Double(torch.autograd.Function):
    """Twice its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


class Chains(nn.Module):
    """Three layers around a function that is the model's forward."""

    def __init__(self, code: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.code = code
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.code(self, x)


NEEDS = {needs_a_value: "__bool__ needs values", needs_a_number: "item needs values"}
NEEDS |= {needs_it_inside_a_function: "Double.apply takes values"}


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("code", NEEDS, ids=lambda code: code.__name__)
def test_a_value_that_the_code_needs(code: Callable[[Any, Tensor], Tensor], reorder: str) -> None:
    """What the code needs launches at once, and is listed with the line of code that needed it."""
    inputs = {"x": torch.ones(2, 8)}
    reference = step(Chains(code), inputs, training=True)
    model = Chains(code)
    where = {"a": 0, "b": 0, "c": 1}
    with distribute(model, inputs, where, "bac", reorder=reorder):
        result = step(model, inputs, training=True)
        assert baechi.last_step(model).counters["forced"] == 1
    assert_same(reference, result)
    (one,) = runtime_of(model).forced
    assert one.reason == NEEDS[code]
    lines, first = inspect.getsourcelines(code)
    here = next(number for number, line in enumerate(lines, first) if line.endswith("# here\n"))
    assert one.line == f"test_launch_order.py:{here}"
    assert launched_on(model, "cpu:0") == ["a", "b"]
    comparison = baechi.compare(model, inputs)
    assert not comparison.in_plan_order and comparison.equal
    assert [line.rsplit(" ", 1)[1] for line in comparison.ran[-1].forced] == [one.line]
    assert str(one) in str(comparison)


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
    baechi.assign(model, interleaved(graph, cluster, where, order))
    assert [name for name in graph.placed() if is_layer(graph, name)][1] == "branch"
    with cluster:
        for taken, one in zip((True, False), expected, strict=True):
            model.taken = taken
            assert torch.equal(model(*inputs), one)
            skipped = [] if taken else ["branch"]
            assert launched_on(model, "cpu:0") == [name for name in order[:4] if name not in skipped]
            assert runtime_of(model).forced == []
