"""Failures, and what is held after them."""

from typing import Any

from architectures.base import noise
from run.protections.models import Shift, shifts
from run.protections.rows import LEAK, NUMBERS, nothing, row, when_called_by
from run.protections.scenarios import scenario
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from baechi.run.deferred import tensor as deferred
from baechi.run.launch import pending
from baechi.run.launch.pending import Pending
from baechi.run.launch.thread_launcher import ThreadLauncher


def failed_holding_the_error() -> tuple[Any, str, Any]:
    """What stands for a failed step holds the error, and so the frames of the step."""
    original = pending.Failed.__init__

    def made(self: Any, error: BaseException) -> None:
        original(self, error)
        self.error = error

    return pending.Failed, "__init__", made


@scenario(
    row("what waits is dropped when a step fails", r"alive|kept", (Pending, "drop", nothing)),
    row(
        "threads end when a step fails",
        r"threads|alive|kept",
        (ThreadLauncher, "stop", when_called_by("drop", nothing, ThreadLauncher.stop)),
        launcher="threads",
    ),
    row("a failed step holds no error", LEAK, failed_holding_the_error()),
    layers=shifts("ab"),
    order="ba",
    launched="",
    error="ValueError: stop",
    launchers=("host", "threads"),
)
def fails(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    net.kept.append(a)
    if not net.captured:
        raise ValueError("stop")
    b: Tensor = net.b(x)
    return a + b


class Refuses(Shift):
    """Raises, where its input has values."""

    refuses = False

    def forward(self, x: Tensor) -> Tensor:
        if self.refuses and not isinstance(x, FakeTensor):
            raise ValueError("refused")
        return super().forward(x)


@scenario(
    row(
        "what fails in launching is dropped",
        r"kept: RecursionError",
        (pending, "_drop", when_called_by("launch", nothing, pending._drop)),
    ),
    layers={"a": Refuses, "b": Shift},
    order="ba",
    launched="",
    error="ValueError: refused",
    launchers=("host", "threads"),
)
def fails_in_launching(net: Any, x: Tensor) -> Tensor:
    net.a.refuses = not net.captured
    a = net.a(x)
    net.kept.append(a)
    b: Tensor = net.b(x)
    return a + b


def launching_keeps(*parts: str) -> tuple[Any, str, Any]:
    """What has launched remembers what it was."""
    original = Pending.launch

    def launch(self: Pending, task: Any) -> None:
        before = {part: getattr(task, part) for part in parts}
        original(self, task)
        for part, value in before.items():
            setattr(task, part, value)

    return Pending, "launch", launch


@scenario(
    row("what has launched forgets its step", LEAK, launching_keeps("schedule")),
    row("what has launched forgets what it was given", LEAK, launching_keeps("given")),
    row("what has launched forgets how", LEAK, launching_keeps("run")),
    row("what has launched forgets what it made", LEAK, launching_keeps("finish")),
    row("what nobody else holds is no alias", NUMBERS, (deferred, "_HELD_BY_US", -1)),
    layers=shifts("ab"),
    order="ba",
    launched="b a",
    inputs=lambda: {"x": noise(3, 8).to("cpu:0")},
    launchers=("host", "threads"),
)
def handed_out(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    q = x * 1
    net.watch(q)
    a = net.a(q)
    b: Tensor = net.b(x)
    net.notes.append(a._is_view())
    return a, b
