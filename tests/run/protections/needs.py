"""What a task needs: values that are waited for, memory that is read or written, also in silence."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from run.protections.models import shifts, statistics
from run.protections.rows import FORCED, NUMBERS, ORDER, RACE, none_of, nothing, row, when_called_by
from run.protections.scenarios import scenario
from torch import Tensor, library, nn
from torch.nn import functional as F

from baechi.order.turns import Turns
from baechi.run import layers
from baechi.run.deferred import storage_use
from baechi.run.launch import needs, schedule
from baechi.run.launch.host_launcher import HostLauncher
from baechi.run.launch.needs import Needs
from baechi.run.launch.schedule import Schedule
from baechi.run.step import copies
from baechi.run.step.step import Step
from baechi.torchlib.operators import functions
from baechi.torchlib.operators.rule import Rule


def without_attribute(name: str, value: Any) -> tuple[Any, str, Any]:
    """What finds needs has something else under this name."""
    original = Needs.__init__

    def made(self: Needs, *args: Any) -> None:
        original(self, *args)
        setattr(self, name, value)

    return Needs, "__init__", made


@scenario(
    row("glue mode is off while a layer is foreseen", ORDER, (layers, "ModesAside", nullcontext)),
    row("its turn", ORDER, (Turns, "_is_up", lambda *_: True)),
    row("the drain after a launch", FORCED, (HostLauncher, "drain", nothing)),
    layers=shifts("abc"),
    devices={"c": 1},
    order="bac",
    launched="b a c",
)
def handed_on(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)  # waits for its turn, which comes after b's
    c = net.c(a)
    d = a * 2
    b: Tensor = net.b(x)
    return b + c + d


@scenario(
    row("what made an argument is needed", FORCED, (needs, "is_deferred", lambda _: False)),
    layers=shifts("ab"),
    order="ba",
    launched="b a",
)
def view_of_a_real_tensor(net: Any, x: Tensor) -> Tensor:
    q = x * 1
    a = net.a(x)
    view = q.expand_as(a)  # shares memory that nobody waits to write, and waits all the same
    c = view * 2
    b: Tensor = net.b(x)
    return a + b + c


@scenario(
    row("a waiting writer is needed", NUMBERS, (needs, "needs_to_read", none_of)),
    row("a waiting writer is noted", NUMBERS, (schedule, "note_write", nothing)),
    layers=shifts("abc"),
    devices={"c": 1},
    order="bac",
    launched="b a c",
)
def read_after_a_waiting_writer(net: Any, x: Tensor) -> Tensor:
    q = x * 1
    a = net.a(x)
    q.add_(a)
    d = q * 2
    c = net.c(q)
    b: Tensor = net.b(x)
    return b + c + d


def needs_to_write_unless(function: str) -> tuple[Any, str, Any]:
    return schedule, "needs_to_write", when_called_by(function, none_of, storage_use.needs_to_write)


@scenario(
    row("glue that writes needs waiting readers", NUMBERS, needs_to_write_unless("glue")),
    row("a waiting reader is noted", NUMBERS, (schedule, "note_read", nothing)),
    layers=shifts("ab"),
    order="ba",
    launched="b a",
)
def written_under_a_waiting_reader(net: Any, x: Tensor) -> Tensor:
    q = x * 1
    a = net.a(q)
    q.mul_(-1)
    b: Tensor = net.b(x)
    return a + b + q


@scenario(
    row("what glue is foreseen to write needs waiting readers", NUMBERS, needs_to_write_unless("_defer")),
    layers=shifts("abcd"),
    order="badc",
    launched="b a d c",
    training=False,
)
def written_without_saying_so(net: Any, x: Tensor) -> Tensor:
    low, high, scale = torch.zeros(8), torch.ones(8), torch.ones(8)
    zero = torch.zeros(8, dtype=torch.int32)
    a = net.a(x)
    c = net.c(low)
    one = torch.ones(1)
    n = torch.fused_moving_avg_obs_fake_quant(
        a.T, one, one, low, high, scale, zero, 0.5, 0, 255, 0, per_row_fake_quant=True
    )
    b, d = net.b(x), net.d(x)
    result: Tensor = b + c + d + n.T
    return result


WITHOUT_STATISTICS = (functions, "rule_of", lambda name: Rule())


@scenario(
    row("statistics count as written: for who waits", NUMBERS, WITHOUT_STATISTICS),
    layers=shifts("bc"),
    setup=statistics,
    order="bc",
    launched="b c",
)
def statistics_of_a_value(net: Any, x: Tensor) -> Tensor:
    c = net.c(net.mean)
    n = F.batch_norm(x, net.mean, net.var, training=True)
    b = net.b(x)
    result: Tensor = b + c + n
    return result


def writes_of_a_copy(change: Callable[[int, int], tuple[int, int]]) -> tuple[Any, str, Any]:
    """What tells a copy from an older one, changed."""
    original = copies.writes_of
    return copies, "writes_of", lambda tensor: change(*original(tensor))


@scenario(
    row("statistics count as written: for transfers", RACE, WITHOUT_STATISTICS),
    row("how often a step said that it writes", NUMBERS, writes_of_a_copy(lambda version, _: (version, 0))),
    layers=shifts("abcd"),
    setup=statistics,
    devices={"d": 1, "c": 1},
    order="bacd",
    launched="c b a d",
    training=False,
)
def statistics_sent(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    c = net.c(net.mean)
    n = F.batch_norm(x, net.mean, net.var, training=True)
    b, d = net.b(x), net.d(net.mean)
    result: Tensor = a + b + c + d + n
    return result


@library.custom_op("protocol::rescale", mutates_args=("scale",))
def rescale(x: Tensor, scale: Tensor) -> Tensor:
    """An operator whose name does not say that it writes."""
    scale.mul_(2)
    return x * scale


@rescale.register_fake
def _(x: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(x)


@scenario(
    row("a custom operator says what it writes", NUMBERS, (functions, "writes_of", none_of)),
    layers=shifts("bc"),
    order="bc",
    launched="b c",
    training=False,
)
def custom_operator(net: Any, x: Tensor) -> Tensor:
    scale = torch.ones(8)
    c = net.c(scale)
    n = rescale(x, scale)
    b = net.b(x)
    result: Tensor = b + c + n
    return result


@scenario(
    row("memory that is exchanged: who waits to read", NUMBERS, (Schedule, "force_users", nothing)),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def other_memory(net: Any, x: Tensor) -> Tensor:
    q = x * 1
    a = net.a(q)
    q.data = x * 3
    b: Tensor = net.b(x)
    return a + b + q


@scenario(
    row("memory that is exchanged: copies of the old one", NUMBERS, (Step, "forget", nothing)),
    layers=shifts("acd"),
    devices={"c": 1, "d": 1},
    order="acd",
    launched="a c d",
    training=False,
)
def other_memory_after_sending(net: Any, x: Tensor) -> Tensor:
    q = net.a(x)
    c = net.c(q)
    q.data = x * 3
    d: Tensor = net.d(q)
    return c + d


@scenario(
    row("what a written layer needs: glue that waits to read", NUMBERS, (Schedule, "_before_write", nothing)),
    layers={**shifts("abq"), "r": lambda: nn.ReLU(inplace=True)},
    devices={"q": 1, "r": 1},
    order="bqra",
    launched="q a r b",
    forced=("add",),
)
def layer_that_writes(net: Any, x: Tensor) -> Tensor:
    q = net.q(x)
    a = net.a(x)
    g = a if net.captured else q + a  # the plan does not know that this comes before r
    r: Tensor = net.r(q)
    return r + g + net.b(x)
