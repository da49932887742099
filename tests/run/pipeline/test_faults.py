"""Whatever goes wrong in a microbatch reaches the caller whole; nothing of it stays, the next step works."""

import copy
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn

import baechi
from baechi.run.pipeline.batch.judge import Judge

pytestmark = pytest.mark.default_cases(2)

X, Y = noise(6, 4), noise(6, 4, seed=2)
PLACES = ("a", "b", "c", "the code", "backward of a", "backward of b", "backward of c")


class Broken(Exception):
    """What goes wrong on purpose."""


class Trap:
    """Where something goes wrong: at which place, for which microbatch."""

    def __init__(self) -> None:
        self.place, self.countdown = "", 0
        self.error: type[BaseException] = Broken
        self.made: list[weakref.ref[Tensor]] = []

    def at(self, place: str, tensor: Tensor | None = None) -> None:
        if tensor is not None:
            self.made.append(weakref.ref(tensor))
        if place == self.place:
            self.countdown -= 1
            if self.countdown < 0:
                self.place = ""
                if self.error is baechi.DeviceMemoryError:
                    assert tensor is not None
                    tensor.new_empty(2**30)
                raise self.error(f"on purpose in {place}")


TRAP = Trap()


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.name = name
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        TRAP.at(f"backward of {ctx.name}")
        return grads[0].clone(), None


class Part(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.weight = name, nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Fails.apply(x @ self.weight, self.name)  # type: ignore[no-untyped-call]
        TRAP.at(self.name, y)
        return y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = Part("a"), Part("b"), Part("c")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b = self.b(self.a(x))
        TRAP.at("the code", b)
        return (self.c(b) - y).square().mean()


@pytest.fixture(autouse=True, scope="module")
def others_are_old() -> Iterator[None]:
    """What is there already is none of ours: looking for what is left takes no time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[nn.Module, nn.Module, baechi.Cluster]]:
    """A model that went through a good step, the plain one, its cluster."""
    model = seeded(Net)
    plain = copy.deepcopy(model)
    cluster = baechi.Cluster.virtual(2, memory="64MiB")
    baechi.distribute(model, (X, Y), cluster=cluster, microbatches=3, device_map={"a": 0, "b": 1, "c": 0})
    threads = set(threading.enumerate())
    works(model, plain, cluster)
    monkeypatch.setattr(
        Judge, "verdict", lambda judge, case, **_: judge.known(case)
    )  # what goes wrong in a look is not the step's
    yield model, plain, cluster
    assert set(threading.enumerate()) <= threads


def works(model: nn.Module, plain: nn.Module, cluster: baechi.Cluster) -> None:
    """A step gives the plain model's gradients."""
    plain.zero_grad()
    plain(X, Y).backward()
    with cluster:
        model.zero_grad()
        model(X, Y).backward()
    assert_same_gradients(model, plain)


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize("place", PLACES)
def test_an_error(world: Any, place: str, error: type[BaseException]) -> None:
    """In forward or backward of each microbatch: itself, with the microbatch noted; all is as before."""
    model, plain, cluster = world
    for microbatch in range(3):
        before = [None if weight.grad is None else weight.grad.clone() for weight in model.parameters()]
        TRAP.made.clear()
        TRAP.place, TRAP.countdown, TRAP.error = place, microbatch, error
        with cluster, pytest.raises(error, match=f"on purpose in {place}") as caught:
            model(X, Y)
        if not place.startswith("backward"):  # forwards of a place run in the order of microbatches
            assert f"in microbatch {microbatch}" in caught.value.__notes__
        del caught
        for weight, grad in zip(model.parameters(), before, strict=True):
            assert (weight.grad is None) == (grad is None)
            assert grad is None or torch.equal(weight.grad, grad)
        works(model, plain, cluster)
        gc.collect()
        assert all(made() is None for made in TRAP.made)
        works(model, plain, cluster)


def test_no_memory(world: Any) -> None:
    """A device that is full: the error names it; everything is as before."""
    model, plain, cluster = world
    TRAP.place, TRAP.countdown, TRAP.error = "b", 1, baechi.DeviceMemoryError
    with cluster, pytest.raises(baechi.DeviceMemoryError, match="cpu:1"):
        model(X, Y)
    works(model, plain, cluster)


@pytest.mark.parametrize("written", [True, False])
def test_the_note_on_what_was_written(written: bool) -> None:
    """It comes with torch's error of a tensor that was kept for backward and written since, and no other."""

    class Writes(Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            kept = self.a(x).exp()
            kept.register_hook(lambda grad: None if written else grad.new_empty(2**30))
            if written:
                kept.detach().mul_(2)
            return (self.c(self.b(kept)) - y).square().mean()

    model = seeded(Writes)
    cluster = baechi.Cluster.virtual(2, memory="64MiB")
    options: Any = {"device_map": {"a": 0, "b": 1, "c": 0}, "loss_weights": "rows"}
    baechi.distribute(model, (X, Y), cluster=cluster, microbatches=3, **options)
    error = RuntimeError if written else baechi.DeviceMemoryError
    with cluster, pytest.raises(error) as caught:
        model(X, Y)
    assert any("with baechi.unsplit" in note for note in caught.value.__notes__) == written
    assert any("in microbatch" in note for note in caught.value.__notes__)


def test_an_error_in_a_drain() -> None:
    """In the backward of a model that returns no loss."""
    outputs = seeded(Rows)
    plain = copy.deepcopy(outputs)
    cluster = pipelined(outputs, X, device_map={"a": 0, "b": 1, "c": 0})
    with cluster:
        TRAP.place, TRAP.countdown, TRAP.error = "backward of b", 1, Broken
        result = outputs(X)
        with pytest.raises(Broken):
            result.sum().backward()
        outputs.zero_grad()
        outputs(X).square().sum().backward()
    plain(X).square().sum().backward()
    assert_same_gradients(outputs, plain)


class Rows(Net):
    """It returns rows."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        result: Tensor = self.c(self.b(self.a(x)))
        return result
