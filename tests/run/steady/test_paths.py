"""The fast path does what the full path does; it is taken, and left when something changes."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures import OWN, Architecture
from architectures.base import noise, seeded
from architectures.of_zoo import ZOO
from matrix import named, pairs_by_tier
from run.launched import runtime_of
from same import Result, assert_same, step
from torch import Tensor, nn

import baechi
from baechi.run.reorder import outcome
from baechi.run.runtime import Runtime
from baechi.run.steady.functions import function_facts
from baechi.run.steady.paths import full_path_only

pytestmark = pytest.mark.default_cases(2)

STEPS = 2


def distributed(architecture: Architecture, training: bool, reorder: Any) -> tuple[nn.Module, baechi.Cluster]:
    cluster = baechi.Cluster.virtual(3, memory="1GiB")
    graph = baechi.profile(architecture.build(), architecture.inputs(), cluster=cluster, training=training)
    model = baechi.assign(architecture.build(), baechi.place(graph, cluster, "random:0"), reorder=reorder)
    return model.train(training), cluster


def left_by(
    architecture: Architecture, training: bool, reorder: Any
) -> tuple[list[Result], list[str], dict[str, int], baechi.Timeline, Runtime]:
    """What steps leave: results, order of launches, counters, what ran where."""
    model, cluster = distributed(architecture, training, reorder)
    with cluster:
        results = [step(model, architecture.inputs(), training=training) for _ in range(STEPS)]
        timeline = baechi.last_step(model)
    runtime = runtime_of(model)
    return results, runtime.launched, dict(timeline.counters), timeline, runtime


def ran_in(timeline: baechi.Timeline) -> Counter[Any]:
    return Counter((span.kind, span.layer, span.where, span.phase) for span in timeline.spans)


SMALL = [architecture for architecture in (*ZOO, *OWN) if "inception" not in architecture.name]
"""Inception has no call that the others lack, and takes as long as all of them."""

MODES = ("training", "inference")


@pytest.mark.parametrize(
    ("architecture", "mode", "reorder"), pairs_by_tier(SMALL, MODES, [False, "host"]), ids=named
)
def test_both_paths_do_the_same(architecture: Architecture, mode: str, reorder: Any) -> None:
    """To the bit: outputs, gradients, buffers; what launches when, what is sent, what runs where."""
    training = mode == "training"
    short, short_launched, short_counters, short_timeline, runtime = left_by(architecture, training, reorder)
    with full_path_only():
        full, launched, counters, timeline, all_full = left_by(architecture, training, reorder)
    for one, other in zip(short, full, strict=True):
        assert_same(one, other)
    assert short_launched == launched
    assert short_counters == counters
    assert ran_in(short_timeline) == ran_in(timeline)
    assert short_timeline.peak_bytes == timeline.peak_bytes
    assert len(all_full.full) > len(runtime.full)


PECULIAR = {"expand_as", "view_as", "to", "ones", "full", "arange"}
"""Functional ops without a fast path: those that name devices or shapes, or are given a `torch.device`."""


@pytest.mark.parametrize(
    ("architecture", "mode", "reorder"), pairs_by_tier(ZOO, MODES, [False, "host"]), ids=named
)
def test_it_is_taken_from_the_third_step_on(architecture: Architecture, mode: str, reorder: Any) -> None:
    """By every layer, whatever the training flag of the capture; by every functional op but peculiar ones."""
    training = mode == "training"
    model, _ = distributed(architecture, training, reorder)
    for number in range(1, 4):
        step(model, architecture.inputs(), training=training)
        runtime = runtime_of(model)
        layers = {runtime.plan.graph.module_of(node) for node in runtime.plan.graph.placed()}
        if number >= 3:
            assert layers.isdisjoint(name.partition("#")[0] for name in runtime.full)
            assert set(runtime.full) <= PECULIAR
    assert function_facts(torch.Tensor.add).short and not function_facts(torch.Tensor.expand_as).short


class Crossed(nn.Module):
    """Two chains whose plan launches them in another order than the code reaches them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.drop = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        a = self.drop(a)
        return self.c(a + self.b(x))


class Counted:
    """How often a call was inferred."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.inferred = 0
        infer = outcome.infer

        def inferring(*args: Any, **kwargs: Any) -> Any:
            self.inferred += 1
            return infer(*args, **kwargs)

        patch.setattr(outcome, "infer", inferring)

    def taken(self) -> int:
        found, self.inferred = self.inferred, 0
        return found


def flag(model: Any) -> None:
    model.drop.eval()


def weight(model: Any) -> None:
    model.a.weight = nn.Parameter(model.a.weight.detach() * 2)


def frozen(model: Any) -> None:
    model.a.weight.requires_grad_(False)


CHANGES: dict[str, Callable[[Any], None]] = {
    "flag": flag,
    "weight": weight,
    "frozen": frozen,
}


def crossed(reorder: str) -> nn.Module:
    model = seeded(Crossed)()
    x = noise(2, 4)
    cluster = baechi.Cluster.virtual(2)
    graph = baechi.profile(model, x, cluster=cluster, training=True, source="estimate")
    nodes = graph.code_order()
    devices = {node: cluster.names[node == "drop"] for node in nodes}
    order = ["b", "a", *[node for node in nodes if node not in ("a", "b")]]
    return baechi.assign(model, baechi.Plan(graph, cluster, devices, tuple(order)), reorder=reorder)


@pytest.mark.parametrize("reorder", ["host", "threads"])
@pytest.mark.parametrize("change", [*CHANGES, "shapes"])
def test_what_waits_is_learned_again(change: str, reorder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that waits is inferred again after a change that decides its outcome, and not before."""
    plain, model, counted = seeded(Crossed)(), crossed(reorder), Counted(monkeypatch)
    x = noise(2, 4)

    def both() -> None:
        results = []
        for one in (plain, model):
            torch.manual_seed(0)
            one.zero_grad()
            out = one(x)
            out.sum().backward()
            results.append((out.detach(), [weight.grad for weight in one.parameters()]))
        (out, grads), (ours, our_grads) = results
        assert torch.equal(out, ours)
        for grad, our_grad in zip(grads, our_grads, strict=True):
            assert grad is our_grad is None or torch.equal(grad, our_grad)

    both()
    both()
    counted.taken()
    both()
    assert counted.taken() == 0
    assert runtime_of(model).counts["deferred"] >= 2
    if change == "shapes":
        x = noise(3, 4)
    else:
        CHANGES[change](plain)
        CHANGES[change](model)
    both()
    assert (counted.taken() > 0) == (change != "weight")  # which looks as the one before
    both()
    both()
    assert counted.taken() == 0


def test_nothing_that_a_layer_let_go_of_is_kept() -> None:
    """What is noted of a layer keeps no weight that was exchanged."""
    model = crossed("host")
    old = nn.Parameter(torch.ones(4, 4))
    model.a.weight = old
    model(noise(2, 4))
    reference = weakref.ref(old)
    model.a.weight = nn.Parameter(torch.ones(4, 4))
    del old
    gc.collect()
    assert reference() is None
