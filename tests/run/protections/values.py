"""Deferred values become real; transfers and copies, who waits for them, and who holds them."""

from typing import Any

from architectures.base import noise
from run.protections.models import Shift, shifts
from run.protections.needs import writes_of_a_copy
from run.protections.rows import ERROR, NUMBERS, RACE, nothing, row, when_called_by
from run.protections.scenarios import scenario
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from baechi.backend.virtual.devices import VirtualDevices
from baechi.run.deferred import storage_use
from baechi.run.deferred import tensor as deferred
from baechi.run.launch import stand_ins
from baechi.run.step import step
from baechi.run.step.step import Step


@scenario(
    row(
        "who uses a value is known when it is real",
        NUMBERS,
        (stand_ins, "use_of", when_called_by("hand_over", nothing, storage_use.use_of)),
    ),
    layers=shifts("abcde"),
    devices={"c": 1, "e": 1},
    order="baecd",
    launched="b a e c d",
)
def written_after_becoming_real(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    c = net.c(a)
    b = net.b(x)
    a.mul_(3)
    e: Tensor = net.e(x)
    return net.d(a) + b + c + e


LAST: list[Tensor] = []


class Keeps(Shift):
    """Hands its output to somebody else, too, who is no part of the model."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        LAST[:] = [] if isinstance(made, FakeTensor) else [made]  # else it would not wait
        return made


@scenario(
    row("what others hold is shared", ERROR, (deferred, "_HELD_BY_US", 99)),
    layers={"a": Keeps, "b": Shift},
    order="ba",
    launched="b a",
)
def held_by_somebody(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    b: Tensor = net.b(x)
    return a + b + LAST.pop().detach()


class Moody(Shift):
    """What it returns depends on what nobody sees."""

    mood: list[int] = []  # noqa: RUF012

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if not self.mood else super().forward(x)[:1]


@scenario(
    row("what comes is what was foreseen", r"no error", (stand_ins, "_check", nothing)),
    layers={"a": Moody, "b": Shift},
    order="ba",
    launched="b a",
    error="BaechiError: a returned something else",
)
def changes_its_mind(net: Any, x: Tensor) -> Tensor:
    Moody.mood.clear()
    a = net.a(x)
    Moody.mood.append(1)
    b: Tensor = net.b(x)
    Moody.mood.clear()
    return a + b


class WritesElsewhere(Shift):
    """Writes what is in its box."""

    def __init__(self) -> None:
        super().__init__()
        self.box: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        for tensor in self.box:
            tensor.mul_(2)
        return super().forward(x)


@scenario(
    row("versions of what was sent", NUMBERS, writes_of_a_copy(lambda _, writes: (0, writes))),
    row("layers that write anything wait for all transfers", RACE, (Step, "may_write_anything", nothing)),
    layers={**shifts("acd"), "w": WritesElsewhere},
    devices={"c": 1, "d": 1},
    order="acwd",
    launched="a c w d",
)
def written_by_a_layer(net: Any, x: Tensor) -> Tensor:
    q = net.a(x).detach()
    c = net.c(q)
    net.w.box.append(q)
    w = net.w(x)
    net.w.box.clear()
    d: Tensor = net.d(q)
    return c + w + d


@scenario(
    row("who writes in place waits for transfers", RACE, (step, "wait_for_readers", nothing)),
    layers=shifts("ace"),
    devices={"c": 1, "e": 1},
    order="aec",
    launched="a e c",
)
def written_after_a_waiting_transfer(net: Any, x: Tensor) -> Tensor:
    q = net.a(x) * 1
    c = net.c(q)
    q.mul_(2)
    e: Tensor = net.e(x)
    return c + q + e


def far_is_over(net: Any, inputs: dict[str, Any]) -> None:
    inputs["x"].mul_(2)


@scenario(
    row("the caller's writes come after the step's transfers", RACE, (Step, "close", nothing)),
    layers=shifts("abc"),
    devices={"c": 1},
    order="bac",
    launched="c b a",
    inputs=lambda: {"x": noise(3, 8).to("cpu:0")},
    after=far_is_over,
)
def inputs_are_the_callers(net: Any, x: Tensor) -> Tensor:
    net.c(x)
    a = net.a(x)
    b: Tensor = net.b(x)
    return a + b


def use_unless(role: str) -> tuple[Any, str, Any]:
    """Allocators are not told of uses by streams of one kind."""
    original = VirtualDevices.use

    def use(self: VirtualDevices, tensor: Tensor, stream: Any) -> None:
        if stream is None or not stream.name.endswith(role):
            original(self, tensor, stream)

    return VirtualDevices, "use", use


@scenario(
    row("the source is kept until it has been read", RACE, use_unless("/tx")),
    row("the copy is kept until it has been used", RACE, use_unless("/compute")),
    layers=shifts("ace"),
    devices={"c": 1, "e": 1},
    order="aec",
    launched="a e c",
    training=False,
)
def dropped_while_on_the_way(net: Any, x: Tensor) -> Tensor:
    c = net.c(net.a(x) * 1)
    e: Tensor = net.e(x)
    return c + e
