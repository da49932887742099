"""Pipelines on devices that torch keeps apart: the same numbers, and no access that nothing orders."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures import HELD_IN, OTHERS, OWN, loss_of
from matrix import in_turn_by_tier
from run.pipeline.by_loop import WithLoss, assert_same_gradients, batch_of, loop
from run.pipeline.nets import Blocks, noise, seeded
from torch import nn

import baechi
from accelerator import NAMES, ToyMachine
from baechi.backend.real.devices import TorchDevices
from baechi.run.pipeline import executor
from baechi.run.pipeline.graph import parts
from baechi.run.pipeline.lanes import lane_step, weights_elsewhere
from baechi.run.pipeline.lanes.weights_elsewhere import WeightsElsewhere
from baechi.run.step import step as plain_step
from baechi.torchlib.tensors import storage

from .devices import FIRST, cluster, compute_on, on_host, there
from .where import moved

pytestmark = pytest.mark.default_cases(1)

NAMED = ("torch_transformer", "in_place_views", "t5", "resnet", "clip", "deberta_v2")
ORDERS = ("1f1b", "gpipe", "interleaved", "auto", "1f1b", "gpipe")
BY_NAME = {architecture.name: architecture for architecture in (*OWN, *HELD_IN, *OTHERS)}


@pytest.mark.full
@pytest.mark.parametrize(("name", "begun"), in_turn_by_tier(NAMED, ["late", "clocks"]))
def test_as_the_loop(toy: ToyMachine, name: str, begun: str) -> None:
    """Work is queued and runs late, in a random order; or every access is checked against vector clocks."""
    number = NAMED.index(name)
    toy.restart(seed=number, late=begun == "late")
    run_as_the_loop(number, ORDERS[number], weights_apart=False)


@pytest.mark.parametrize("late", [True, False], ids=["late", "clocks"])
def test_weights_apart(toy: ToyMachine, late: bool) -> None:
    """The same where gradients of weights are tasks of their own."""
    toy.restart(seed=9, late=late)
    run_as_the_loop(0, "gpipe", weights_apart=True)


def run_as_the_loop(number: int, order: str, *, weights_apart: bool) -> None:
    """A pipelined step of a named architecture beside a loop over the same parts."""
    architecture, microbatches = BY_NAME[NAMED[number]], 2 + number % 2
    model = WithLoss(architecture.build(), loss_of).train().double()
    inputs = batch_of(architecture.inputs(), 5)
    plain = moved(copy.deepcopy(model), FIRST)
    expected = loop(plain, there(inputs), microbatches)
    devices = cluster(*NAMES[: 2 + number % 2])
    graph = baechi.profile(
        model,
        inputs,
        cluster=devices,
        training=True,
        source="estimate",
        microbatches=microbatches,
        weights_apart=weights_apart,
    )
    plan = baechi.place(graph, devices, f"random:{number}")
    pipeline = baechi.pipeline(plan, microbatches, order)  # type: ignore[arg-type]
    assert bool(pipeline.units.weights_of) == weights_apart
    baechi.distribute(model, plan=pipeline, loss_weights="rows")
    torch.manual_seed(3)
    loss = model(**there(inputs))
    loss.backward()
    assert torch.allclose(loss.detach().cpu(), expected.cpu(), rtol=1e-12)
    assert_same_gradients(on_host(model), on_host(plain))


@pytest.mark.parametrize("name", ["custom_function", "recurrent_gemma"])  # with functions of their own
@pytest.mark.parametrize("microbatches", [None, 3], ids=["whole", "microbatches"])
def test_gradients_made_on_parts(toy: ToyMachine, name: str, microbatches: int | None) -> None:
    """They are made on the streams of parts, and autograd goes on with them on the caller's."""
    toy.restart(late=False)
    architecture = BY_NAME[name]
    model = WithLoss(architecture.build(), loss_of).train().double()
    inputs = batch_of(architecture.inputs(), 6)
    plain = moved(copy.deepcopy(model), FIRST)
    wanted = {"microbatches": microbatches, "loss_weights": "rows"} if microbatches else {}
    baechi.distribute(
        model, inputs, cluster=cluster("toy:0/0", "toy:0/1"), placer="random:2", source="estimate", **wanted
    )
    for _ in range(2):  # gradients of two calls add up
        model(**there(inputs)).backward()
        loop(plain, there(inputs), microbatches or 1)
    assert_same_gradients(on_host(model), on_host(plain))


def test_a_drain(toy: ToyMachine) -> None:
    """Without a loss the backwards run inside `backward()`, which the device threads must not wait for."""
    x = noise(7, 6)
    model = seeded(Blocks)
    plain = copy.deepcopy(model)
    where = {"a": 0, "b": 1, "c": 1, "d": 0}
    devices = cluster(*NAMES[:2])
    baechi.distribute(model, x, cluster=devices, microbatches=3, device_map=where, source="estimate")
    given, own = there(x).requires_grad_(), x.clone().requires_grad_()
    model(given).square().sum().backward()
    plain(own).square().sum().backward()
    assert given.grad is not None and own.grad is not None and torch.allclose(given.grad.cpu(), own.grad)
    assert_same_gradients(on_host(model), plain)


@pytest.mark.parametrize("late", [True, False], ids=["late", "clocks"])
@pytest.mark.parametrize("asides", ["call", "backward", "none"])
@pytest.mark.parametrize("places", [NAMES[:2], ("toy:0/0", "toy:0/1")], ids=["devices", "parts"])
def test_backward_on_other_streams(toy: ToyMachine, places: tuple[str, ...], asides: str, late: bool) -> None:
    """Gradients that wait are scaled after they were made, and before the caller goes on. Parts of a device
    have streams that are not the caller's."""
    toy.restart(seed=5, late=late)
    model, x = seeded(lambda: WithLoss(Blocks(), lambda out: out.square().mean())), noise(8, 6)
    plain, where = copy.deepcopy(model), {"a": 0, "b": 1, "c": 1, "d": 0}
    device_map = {f"model.{name}": device for name, device in where.items()}
    baechi.distribute(
        model, x, cluster=cluster(*places), microbatches=2, device_map=device_map, source="estimate"
    )
    usual = [torch.accelerator.current_stream(place) for place in NAMES[:2]]
    sides = [torch.Stream(device=place) for place in NAMES[:2]]
    optimizer, own, given = (*[torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, plain)], there(x))
    kept = [weight.view_as(weight).grad_fn for weight in model.parameters()]  # as DDP does: on its streams,
    toy.synchronize()  # torch adds up gradients, and makes those of the caller follow
    try:
        for number in range(4):
            if asides == "call":
                compute_on(sides, after=usual)
            loss = model(given)
            if asides == "call":  # nothing but backward() orders one after the other
                compute_on(usual, after=usual)
            if asides == "backward":
                compute_on(sides, after=usual)
            loss.backward()
            plain(x).backward()
            if number % 2:  # gradients of two steps add up
                optimizer.step()
                optimizer.zero_grad()
                own.step()
                own.zero_grad()
            if asides == "backward":
                compute_on(usual, after=sides)
    finally:
        compute_on(usual, after=sides)
    assert len(kept) == len(list(plain.parameters()))
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one.detach().cpu(), other.detach(), rtol=1e-12)


class Viewed(nn.Module):
    """A view of an output is read elsewhere later: it is sent when it is read, behind what made it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.a(x)
        second = self.b(first[:, :])
        return (self.d(self.c(second[:, :]) + first) * 2).square().mean()


class Rewritten(nn.Module):
    """What is sent to another device as soon as it is made is written in place later: behind the transfer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.a(x) + x
        before = self.b(made)
        with torch.no_grad():
            made.mul_(2)
        return (self.c(made) + self.d(before) + self.d(made)).square().mean()


class WrittenSince(nn.Module):
    """What was sent is written where it was made, after the stretch that made it, and sent again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.a(x) + x
        third = self.c(self.b(made))
        with torch.no_grad():
            made.mul_(third.detach())
        return self.d(self.b(made)).square().mean() + third.square().mean()


class Masked(nn.Module):
    """A mask is made here, read elsewhere as a view that is made later, written here, and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.a(x)
        second = self.b(first)
        mask = self.c(first).detach() * 2
        third = self.d(second)
        fourth = third * mask[:1]
        mask.mul_(2)
        fifth = self.d(fourth)
        return (fifth * mask[:1]).square().mean()


class Times(nn.Module):
    """A layer that is given a weight of another one."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight


class Passed(nn.Module):
    """A weight is read on another device; steps write it before the next."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.d = Times()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.a(x)
        return (self.d(self.c(self.b(first).relu()), self.a.weight) + first).square().mean()


def nothing(*_: Any, **__: Any) -> None:
    """In place of a wait."""


def too_early(backend: Any, place: str) -> Any:
    """The event after what was issued at a place when its first part was over."""
    return _EARLY.setdefault((backend, place), backend.record(backend.compute_stream(place)))


def before_all(weights: Any, tensor: torch.Tensor, place: str) -> Any:
    """The event after what was issued at a place when the first step began."""
    found = weights._begun.get(place)
    return _EARLY.setdefault((weights._backend, place), found)


def as_sent(copied: torch.Tensor, way: Any) -> torch.Tensor:
    """The copy, whether it has arrived or not."""
    return copied


def unwritten(tensor: torch.Tensor) -> Any:
    """The mark of a memory that does not say that it was written."""
    return None if storage.mark_of(tensor) is None else SimpleNamespace(writes=0)


_EARLY: dict[Any, Any] = {}
WAITS = {
    "backward waits until a gradient has arrived": (Viewed, executor, "receive", nothing),
    "what is sent later waits for what made it": (Viewed, parts, "event_at", too_early),
    "what was written since is sent behind that": (WrittenSince, lane_step, "mark_of", unwritten),
    "what has no history, too": (Masked, parts, "event_at", too_early),
    "what was written without history, too": (Masked, lane_step, "mark_of", unwritten),
    "a weight is sent behind what wrote it": (Passed, WeightsElsewhere, "ready", before_all),
    "what reads a weight waits until that has arrived": (Passed, weights_elsewhere, "arrive", as_sent),
    "sent memory is not reused before it was read": (Viewed, TorchDevices, "use", nothing),
    "a write waits until what was sent ahead was read": (Rewritten, plain_step, "wait_for_readers", nothing),
}


def stepped(toy: ToyMachine, build: type[nn.Module]) -> list[str]:
    """Two steps of a pipeline by clocks; what nothing orders."""
    toy.restart(late=False)
    x = noise(8, 6)
    model = baechi.distribute(
        seeded(build),
        x,
        cluster=cluster(*NAMES[:2]),
        microbatches=4,
        device_map={"a": 0, "b": 1, "c": 0, "d": 1},
        order="gpipe",
        loss_weights="rows",
        coupled="accept",
        source="estimate",
        verify=False,  # the dry run of the whole batch finds a missing wait before the devices do
    )
    for _ in range(2):
        model(there(x)).backward()
        with torch.no_grad():
            model.a.weight.mul_(1.5)
    found = toy.faults()
    toy.restart(late=False)
    return found


@pytest.mark.parametrize("build", [Viewed, Rewritten, WrittenSince, Masked, Passed])
def test_nothing_is_unordered(toy: ToyMachine, build: type[nn.Module]) -> None:
    """With all waits in place."""
    assert stepped(toy, build) == []


@pytest.mark.parametrize("name", list(WAITS))
def test_each_wait_is_needed(toy: ToyMachine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without it, an access is unordered."""
    _EARLY.clear()
    build, owner, attribute, instead = WAITS[name]
    monkeypatch.setattr(owner, attribute, instead)
    assert stepped(toy, build)
