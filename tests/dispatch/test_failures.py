"""What a call raises when chunks fail, who still runs, and that the next call works. Events hold threads."""

import threading
from typing import Any, ClassVar

import pytest
import torch
from dispatch.chunks_of import mlp, small
from torch import nn

import baechi
from baechi import AggregateError, FatalError, RoundRobin
from baechi.dispatch.failures import failure_of


class Diverged(Exception):
    """A user's own error, with what it knows."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(f"rows {rows} diverge")
        self.rows = rows


class Slotted(Exception):
    """It takes no attribute."""

    __slots__ = ()


class Held(nn.Module):
    """Chunks that wait for each other: a chunk's first number says which it is."""

    begun: ClassVar[dict[int, threading.Event]] = {}
    waits: ClassVar[dict[int, threading.Event]] = {}
    after: ClassVar[dict[int, threading.Event]] = {}
    fails: ClassVar[dict[int, Exception]] = {}
    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


class Inner(nn.Module):
    """Does what `Held` says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chunk = int(x[0])
        if chunk in Held.begun:
            Held.begun[chunk].set()
        if chunk in Held.waits:
            assert Held.waits[chunk].wait(30)
        Held.seen.append(chunk)
        try:
            if chunk in Held.fails:
                raise Held.fails[chunk]
            return x * 2
        finally:
            if chunk in Held.after:
                Held.after[chunk].set()


@pytest.fixture(autouse=True)
def _nothing_held() -> None:
    Held.begun, Held.waits, Held.after, Held.fails = {}, {}, {}, {}
    Held.seen.clear()


class Watched(RoundRobin):
    """Sets an event when the caller has seen that some chunks are done."""

    def __init__(self, done: int) -> None:
        super().__init__(2, batch_size=1)
        self.count, self.done, self.seen = 0, done, threading.Event()

    def completed(self, *args: Any, **kwargs: Any) -> None:
        super().completed(*args, **kwargs)
        self.count += 1
        if self.count == self.done:
            self.seen.set()


X = torch.arange(8.0)
"""Row i is chunk i; two workers have even and odd ones."""


def test_results_are_in_order_whatever_is_done_first() -> None:
    scheduler = Watched(1)
    Held.waits = {0: scheduler.seen}  # chunk 0 runs when the caller has chunk 1
    model = baechi.dispatch(Held(), scheduler, workers="thread", out=("cat", 0))
    assert torch.equal(model(X), X * 2)
    assert Held.seen.index(1) < Held.seen.index(0)


def test_after_a_failure_nothing_new_starts_and_what_runs_ends() -> None:
    scheduler, begun = Watched(1), threading.Event()
    Held.begun = {0: begun}
    Held.waits, Held.fails = {0: scheduler.seen, 1: begun}, {1: Diverged([1])}
    threads = threading.active_count()
    model = baechi.dispatch(Held(), scheduler, workers="thread", out=("cat", 0))
    with pytest.raises(Diverged) as raised:
        model(X)
    assert raised.value is Held.fails[1]  # itself, of its own type
    assert raised.value.rows == [1]
    assert raised.value.__notes__ == [
        "in layer inner (Inner) on cpu",
        "in chunk 1 (rows 1 to 1 of 8) on worker 1 on cpu",
    ]
    assert not raised.value.recoverable  # type: ignore[attr-defined]
    assert set(Held.seen) <= {0, 1, 2, 3}  # those that a worker had
    assert 0 in Held.seen
    Held.begun, Held.waits, Held.fails = {}, {}, {}
    assert torch.equal(model(X), X * 2)
    assert threading.active_count() == threads


def test_several_failures_are_in_the_order_of_chunks() -> None:
    begun, one_failed = threading.Event(), threading.Event()
    Held.begun = {0: begun}
    Held.waits, Held.after = {0: one_failed, 1: begun}, {1: one_failed}
    Held.fails = {0: Diverged([0]), 1: Slotted("one")}
    model = baechi.dispatch(Held(), RoundRobin(2, batch_size=1), workers="thread", recoverable=(Diverged,))
    with pytest.raises(AggregateError, match=r"2 of . chunks failed") as raised:
        model(X[:2])
    assert list(raised.value.exceptions) == [Held.fails[0], Held.fails[1]]
    assert not raised.value.recoverable  # one of them is not
    caught = []
    try:
        raise raised.value
    except* Diverged as group:
        caught += group.exceptions
    except* Slotted as group:
        caught += group.exceptions
    assert len(caught) == 2


@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_recoverable_errors_are_tried_with_less(workers: Any) -> None:
    class Narrow(nn.Module):
        most = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > self.most:
                raise Diverged([len(x)])
            return x + 1

    given = {"recoverable": (Diverged,), "workers": workers, "out": ("cat", 0)}
    assert torch.equal(baechi.dispatch(Narrow(), small(8), retry=2, **given)(X), X + 1)
    model = baechi.dispatch(Narrow(), small(8), retry=1, **given)
    with pytest.raises(Diverged) as raised:
        model(X)
    assert raised.value.recoverable  # type: ignore[attr-defined]
    with pytest.raises(Diverged):  # without being called recoverable, it is not tried again
        baechi.dispatch(Narrow(), small(8), retry=2, out=("cat", 0))(X)


def test_memory_errors_are_recoverable() -> None:
    class Full(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 4:
                raise torch.OutOfMemoryError("full")
            return x

    assert torch.equal(baechi.dispatch(Full(), small(8), retry=1, out=("cat", 0))(X), X)


def test_failures_of_the_caller_come_first() -> None:
    Held.fails = {0: Diverged([0])}

    def inputs() -> Any:
        yield X[:1]
        raise ValueError("no more files")

    model = baechi.dispatch(Held(), RoundRobin(2, batch_size=1), workers="inline", out=("cat", 0))
    with pytest.raises((AggregateError, ValueError)) as raised:
        list(model.stream(inputs()))
    first = raised.value
    assert isinstance(first, ValueError) or isinstance(first.exceptions[0], ValueError)
    Held.fails = {}
    assert torch.equal(model(X), X * 2)


def test_interrupts_leave_a_clean_model() -> None:
    scheduler = RoundRobin(2, batch_size=1)
    model = baechi.dispatch(Held(), scheduler, workers="thread", out=("cat", 0))
    completed, scheduler.completed = scheduler.completed, _interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        model(X)
    scheduler.completed = completed  # type: ignore[method-assign]
    assert torch.equal(model(X), X * 2)


def _interrupted(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"model": 3}, TypeError, "model is 3"),
        ({"model": nn.Linear}, TypeError, "function that makes one"),
        ({"scheduler": 3}, TypeError, "of type int"),
        ({"chunks": 3}, TypeError, "Rows or baechi.HaloTiles"),
        ({"workers": "fork"}, ValueError, "no workers 'fork'"),
        ({"retry": -1}, ValueError, "retry is -1"),
        ({"timeout": 1.0}, ValueError, "cannot be stopped"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(arguments: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        baechi.dispatch(**{"model": mlp(), **arguments})


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(FatalError, match="on `meta`"):
        baechi.dispatch(nn.Linear(1, 1, device="meta"), RoundRobin(2))(torch.ones(2, 1))


def test_a_device_that_is_not_here_is_named() -> None:
    with pytest.raises(FatalError, match="no device 'nowhere:0'"):
        baechi.dispatch(mlp(), baechi.HybridScheduler(["cpu", "nowhere:0"], 2))(torch.ones(4, 8))


def test_what_all_chunks_refuse_is_raised_once() -> None:
    """Gradients do not come back from processes: one error, not one for each chunk; others stay a group."""
    refused = [
        baechi.FatalError("gradients do not come back"),
        baechi.FatalError("gradients do not come back"),
    ]
    assert failure_of(refused, 2) is refused[0]
    assert isinstance(failure_of([*refused, baechi.FatalError("another")], 3), baechi.AggregateError)
    assert isinstance(failure_of([ValueError("same"), ValueError("same")], 2), baechi.AggregateError)
