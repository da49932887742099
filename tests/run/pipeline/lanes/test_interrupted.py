"""A signal's handler may raise at any point of a step: it ends, nothing stays, the next one is right."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from run.pipeline.lanes.interrupted import HANDING_OVER, Interrupted, Interruption, each_point
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from baechi.backend.flag import LockFlag
from baechi.run.pipeline.batch.judge import Judge
from baechi.torchlib.private.modes import function_modes

X, Y = noise(4, 4), noise(4, 4, seed=2)
MANY_S = 30.0


class Net(nn.Module):
    """It draws, and keeps a tensor from one stretch of code to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.kept = x.sum()
        b = F.dropout(self.b(self.a(x)), 0.5)
        return (self.c(b) * self.kept - y).square().mean()


@pytest.fixture(params=["emulated", "not emulated"])
def world(request: Any) -> Iterator[tuple[nn.Module, int]]:
    """A model, and how many points to go on: emulated steps take long."""
    model = seeded(Net)
    where = {"a": 0, "b": 1, "c": 0}
    options: Any = {"device_map": where, "order": "1f1b", "loss_weights": "rows", "coupled": "accept"}
    cluster = pipelined(model, (X, Y), microbatches=2, **options)
    with cluster if request.param == "emulated" else nullcontext():
        yield model, 7 if request.param == "emulated" else 1


def stepped(model: nn.Module) -> list[Tensor]:
    """The loss and gradients of a step, and the generator's state after it."""
    torch.manual_seed(3)
    model.zero_grad()
    loss = model(X, Y)
    loss.backward()
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return [loss.detach(), *grads, torch.get_rng_state()]


def assert_no_threads(before: set[threading.Thread]) -> None:
    for thread in set(threading.enumerate()) - before:
        thread.join(MANY_S)  # one whose start was interrupted ends by itself
        assert not thread.is_alive()


@pytest.mark.default_cases(1)
def test_at_each_point(world: Any) -> None:
    """The call ends with the exception, its threads are gone, and the caller's state is as before it."""
    (model, stride), before = world, set(threading.enumerate())
    stepped(model)
    expected = stepped(model)
    ended = []

    def run(interruption: Interruption) -> None:
        model.zero_grad()
        state, kept = torch.get_rng_state(), model.kept
        try:
            with interruption.within():
                model(X, Y)
        except Interrupted:
            moved = not torch.equal(state, torch.get_rng_state())
            # at the very end all of the step is there, else nothing of it
            assert moved == (model.kept is not kept), interruption.where
            ended.append(moved)
        assert_no_threads(before)
        assert function_modes() == [], interruption.where  # a look that was interrupted leaves none
        assert all(weight.grad is None for weight in model.parameters())

    for interruption in each_point(HANDING_OVER, run, stride):
        again = stepped(model)
        assert all(map(torch.equal, again, expected)), interruption.where
    assert len(ended) * stride > 250 and ended == sorted(ended) and not ended[len(ended) * 9 // 10]


def test_a_lane_that_ends_while_its_executor_looks_away() -> None:
    """The executor was interrupted in its wait, and asks for the next turn: that never comes."""
    model = seeded(Net)
    pipelined(model, (X, Y), microbatches=2, device_map={"": 0}, loss_weights="rows", coupled="accept")
    stepped(model)  # the first call looks at a few rows, in this thread
    before = set(threading.enumerate())
    reached, goes_on = threading.Event(), threading.Event()
    main = threading.get_ident()

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            reached.set()
            assert goes_on.wait(MANY_S)
            return x

    waiting = []

    def interrupted(flag: LockFlag) -> bool:
        if threading.get_ident() != main:
            return original(flag)
        waiting.append(flag)
        if len(waiting) == 1:  # the lane runs its code, to the end
            assert reached.wait(MANY_S)
            raise Interrupted
        goes_on.set()  # the executor has asked for the turn after it
        for _ in range(1000):
            if flag.is_set():
                return True
            time.sleep(0.01)
        raise AssertionError("the executor waits for ever")

    original = LockFlag.wait
    model.b.register_forward_hook(lambda module, args, result: Waits()(result))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LockFlag, "wait", interrupted)
        patch.setattr(
            Judge, "verdict", lambda judge, case, **_: judge.known(case)
        )  # a look would wait for the lane
        with pytest.raises(Interrupted):
            model(X, Y)
    assert_no_threads(before)


def test_a_flag_that_is_raised_twice() -> None:
    """By who was interrupted in between: the waiting thread goes on, once."""
    for _ in range(200):
        flag, passed = LockFlag(), []

        def waits(flag: LockFlag = flag, passed: list[bool] = passed) -> None:
            passed.append(flag.wait())

        thread = threading.Thread(target=waits, daemon=True)
        thread.start()
        for _ in range(3):
            flag.set()
        thread.join(MANY_S)
        assert passed == [True] and flag.wait()


def test_a_timeout_while_a_few_rows_are_asked() -> None:
    """The first step asks them what their losses count: the timeout is no failure of the model's code."""
    model: Any = seeded(Net)
    pipelined(model, (X, Y), device_map={"": 0}, microbatches=2, coupled="accept")

    def raises(*_: object) -> None:
        raise Interrupted

    def signals(module: nn.Module, args: Any) -> None:
        if signal.getsignal(signal.SIGUSR1) is raises:
            signal.raise_signal(signal.SIGUSR1)

    model.b.register_forward_pre_hook(signals)
    before = signal.signal(signal.SIGUSR1, raises)
    try:
        with pytest.raises(Interrupted):
            model(X, Y)
    finally:
        signal.signal(signal.SIGUSR1, before)
    model(X, Y).backward()
