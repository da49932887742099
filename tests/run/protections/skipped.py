"""Layers that are not reached, and the end of a step."""

from typing import Any

from run.protections.models import shifts
from run.protections.rows import FORCED, ORDER, row
from run.protections.scenarios import scenario
from torch import Tensor

from baechi.order.turns import Turns
from baechi.run.launch.schedule import Schedule


def never_skipped(turns: Turns, queue: int) -> int:
    """Goes past what has launched only."""
    layers, position = turns._queues[queue], turns._next[queue]
    while position < len(layers) and layers[position] in turns._launched:
        position += 1
    turns._next[queue] = position
    return position


def skip_at_the_end(turns: Turns) -> list[str]:
    """What was skipped is seen when the step is over."""
    ended = turns._host_place == len(turns._code_place)
    return [layer for queue in range(len(turns._queues)) for layer in turns._up(queue)] if ended else []


@scenario(
    row("a branch that is not taken", FORCED, (Turns, "_pass", never_skipped)),
    row("the host says when it has passed a branch", ORDER, (Turns, "skip", skip_at_the_end)),
    layers=shifts("asc"),
    devices={"c": 1},
    order="sac",
    launched="a c",
)
def branch_not_taken(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    s = net.s(x) if net.captured else x
    c: Tensor = net.c(x)
    return a + s + c


@scenario(
    row("the host asks again when it has passed a branch", FORCED, (Turns, "is_up", lambda *_: False)),
    layers=shifts("swce"),
    devices={"e": 1},
    order="swce",
    launched="w c e",
)
def turn_behind_a_branch(net: Any, x: Tensor) -> Tensor:
    w = net.w(x)
    s = net.s(x) if net.captured else x
    c, e = net.c(x), net.e(x)
    result: Tensor = w + s + c + e
    return result


def finish_without(what: str) -> tuple[Any, str, Any]:
    original = Schedule.finish

    def finish(self: Schedule) -> None:
        if what == "all":
            self.launcher.finish()
        elif what == "end":
            self.turns.end = list  # type: ignore[method-assign]
            original(self)
        else:
            self.pending.wake(self.turns.end())
            self.launcher.finish()

    return Schedule, "finish", finish


@scenario(
    row("what waits launches before the step is over", FORCED, finish_without("all")),
    row("the end of the code skips what was not reached", FORCED, finish_without("end")),
    layers=shifts("asc"),
    devices={"c": 1},
    order="csa",
    launched="c a",
)
def skipped_at_the_end(net: Any, x: Tensor) -> Tensor:
    c, a = net.c(x), net.a(x)
    s = net.s(x) if net.captured else x
    return a + s + c


@scenario(
    row("what waits in a circle launches at the end", FORCED, finish_without("loop")),
    layers=shifts("pq"),
    order="pq",
    launched="q p",
    forced=("q",),
)
def circle(net: Any, x: Tensor) -> Tensor:
    q = net.q(x)
    p: Tensor = net.p(x if net.captured else q)  # comes first on its device, the plan says
    return p + q
