"""Who launches when: turns, needs, regions in the code's order, and what the caller had set."""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from run.protocol import (
    ERROR,
    FORCED,
    NUMBERS,
    ORDER,
    RACE,
    RANDOM,
    Shift,
    linears,
    none_of,
    nothing,
    row,
    scenario,
    shifts,
    statistics,
    when_called_by,
)
from torch import Tensor, library, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from baechi.order.turns import Turns
from baechi.run import calls
from baechi.run.deferred import call, storage_use
from baechi.run.launch import code_order, schedule
from baechi.run.launch.host_launcher import HostLauncher
from baechi.run.launch.schedule import Schedule
from baechi.run.runtime import Runtime
from baechi.run.state import caller_state, random_draws
from baechi.run.state.caller_state import CallerState
from baechi.run.state.contents import Contents
from baechi.run.step import step
from baechi.run.step.step import Step
from baechi.torchlib.operators import functions
from baechi.torchlib.operators.rule import Rule

# --- what a task needs: values, memory, turns


def without_attribute(name: str, value: Any) -> tuple[Any, str, Any]:
    """Schedules have something else under this name."""
    original = Schedule.__init__

    def made(self: Schedule, *args: Any) -> None:
        original(self, *args)
        setattr(self, name, value)

    return Schedule, "__init__", made


@scenario(
    row("glue mode is off while a layer is foreseen", ORDER, without_attribute("_aside", nullcontext)),
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
    row("what made an argument is needed", FORCED, (schedule, "is_deferred", lambda _: False)),
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
    row("a waiting writer is needed", NUMBERS, (schedule, "needs_to_read", none_of)),
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
    original = step._writes_of
    return step, "_writes_of", lambda tensor: change(*original(tensor))


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


def without_layer(module: nn.Module, *values: Any) -> Contents:
    """What is within reach of arguments, not of the layer itself."""
    return Contents(*values)


def call_without(unknown: str) -> tuple[Any, str, Any]:
    """Calls that do not say what they write without being given it."""
    return calls, "Call", lambda *args: dataclasses.replace(call.Call(*args), **{unknown: ()})


@scenario(
    row("weights that a waiting layer reads", NUMBERS, (calls, "Contents", without_layer)),
    layers=shifts("ab"),
    order="ba",
    launched="b a",
)
def weight_written_under_a_waiting_layer(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    with torch.no_grad():
        net.a.weight.mul_(2)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("weights that a waiting task writes", NUMBERS, (calls, "Contents", without_layer)),
    layers=shifts("abc"),
    devices={"c": 1},
    order="bac",
    launched="b a c",
)
def weight_written_by_what_waits(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    with torch.no_grad():
        net.c.weight.add_(a.detach()[0])
    c: Tensor = net.c(x)
    return a + net.b(x) + c


def norm() -> nn.Module:
    return nn.BatchNorm1d(8)


@scenario(
    row("buffers that a waiting layer writes", NUMBERS, call_without("keeps")),
    layers={**shifts("b"), "norm": norm},
    order=["b", "norm"],
    launched="b norm",
)
def statistics_of_a_waiting_layer(net: Any, x: Tensor) -> Tensor:
    n = net.norm(x)
    mean = net.norm.running_mean * 1
    b: Tensor = net.b(x)
    return n + mean + b


@scenario(
    row("buffers that what waits reads", NUMBERS, call_without("keeps")),
    layers={**shifts("ab"), "norm": norm},
    devices={"norm": 1},
    order=["b", "a", "norm"],
    launched="b a norm",
)
def statistics_read_by_what_waits(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    mean = net.norm.running_mean[None] + (x if net.captured else a)  # the plan does not know of a
    n = net.norm(x)
    b: Tensor = net.b(x)
    return n + mean + b


class Counts(Shift):
    """Writes its buffer in training only: a plan for inference does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.mul_(0.5).add_(x[0])  # type: ignore[operator]
        return super().forward(x) + self.seen.clone()  # type: ignore[operator]


def stateless() -> tuple[Any, str, Any]:
    """No module is said to have buffers."""
    original = Runtime.__init__

    def made(self: Runtime, *args: Any, reorder: Any = True, **_: Any) -> None:
        original(self, *args, reorder=reorder)

    return Runtime, "__init__", made


@scenario(
    row("calls of a module with buffers keep their order", FORCED, stateless()),
    layers={**shifts("b"), "c": Counts},
    order=["c", "b", "c#2", "c#1"],
    captured_for_training=False,
    launched="c b c#1 c#2",
)
def called_again(net: Any, x: Tensor) -> Tensor:
    first, second, third = net.c(x), net.c(x + 1), net.c(x + 2)
    b: Tensor = net.b(x)
    return first + second * 2 + third * 3 + b


class Writes(nn.Module):
    """Keeps the mean of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.register_buffer("cache", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.weight
        self.cache.copy_(y.detach().mean(0))  # type: ignore[operator]
        return y


LOOKED_AT: list[Any] = []


def look_at(net: Any) -> None:
    """The layers that are looked at are those of this network."""
    LOOKED_AT[:] = [net.a]


class Looks(Shift):
    """Reads what is in a global list, which nobody hands to it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + sum(one.cache for one in LOOKED_AT)


@scenario(
    row("what the plan says is read", r"launched", without_attribute("_parents", {})),
    layers={"a": Writes, "b": Shift, "c": Looks},
    setup=look_at,
    order="bac",
    launched="a c b",
    forced=("gt",),
)
def read_without_being_given(net: Any, x: Tensor) -> Tensor:
    a, c = net.a(x), net.c(x)
    if c.sum() > 1e9:
        c = -c
    b: Tensor = net.b(x)
    return a + b + c


# --- what is not reached, and the end of a step


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


def asked_once() -> tuple[Any, str, Any]:
    """Whose turn it is not is not asked again."""
    original = Turns.is_up
    asked: WeakKeyDictionary[Turns, set[str]] = WeakKeyDictionary()

    def is_up(self: Turns, layer: str) -> bool:
        before = asked.setdefault(self, set())
        again = layer in before
        before.add(layer)
        return not again and original(self, layer)

    return Turns, "is_up", is_up


@scenario(
    row("the host asks again when it has passed a branch", FORCED, asked_once()),
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


# --- what the caller had set


def state_without(part: str) -> tuple[Any, str, Any]:
    """A state of the caller of which a part is not put back: the launching thread's holds."""
    original = CallerState.restored

    def restored(state: CallerState) -> Any:
        return original(dataclasses.replace(state, **{part: getattr(CallerState.now(), part)}))

    return CallerState, "restored", restored


@scenario(
    row("grad mode", NUMBERS, state_without("grad")),
    layers=shifts("ab"),
    order="ba",
    launched="b a",
)
def without_gradients(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        a = net.a(x)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("inference mode", NUMBERS, state_without("inference")),
    layers=shifts("ab"),
    order="ba",
    launched="b a",
)
def inference(net: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        a = net.a(x)
    b: Tensor = net.b(x)
    net.notes.append(a.is_inference())
    return a.clone() + b


@scenario(
    row("autocast", r"BaechiError: a returned something else", state_without("autocast")),
    layers=linears("ab"),
    order="ba",
    launched="b a",
)
def autocast(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        a = net.a(x)
    b: Tensor = net.b(x)
    return a + b


class Ones(Shift):
    """Makes a tensor of the default dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.ones(8)


@scenario(
    row("weights that autocast has cast", NUMBERS, (schedule, "casts_weights", lambda _: "")),
    layers=linears("abc"),
    order="cab",
    launched="a c b",
    forced=("a",),
)
def cast_for_several(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    with torch.autocast("cpu", torch.bfloat16):
        first = F.linear(a, net.b.weight)
        second = F.linear(x * 3, net.b.weight)
    b, c = net.b(x), net.c(x)
    result: Tensor = first * second + b + c
    return result


@scenario(
    row("default dtype", r"BaechiError: a returned something else", state_without("dtype")),
    layers={"a": Ones, "b": Shift},
    order="ba",
    launched="b a",
)
def default_dtype(net: Any, x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        a = net.a(x)
    finally:
        torch.set_default_dtype(torch.float32)
    b: Tensor = net.b(x)
    return a.float() + b


def packing(net: Any) -> Any:
    """Hooks that note the shape of what autograd saves."""

    def pack(tensor: Tensor) -> Tensor:
        net.notes.append(tuple(tensor.shape))
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


@scenario(
    row(
        "hooks on saved tensors are somebody else's",
        NUMBERS,
        (caller_state, "saved_hooks_aside", lambda: nullcontext(False)),
    ),
    layers=linears("ab"),
    order="ba",
    launched="b a",
)
def waits_for_hooks(net: Any, x: Tensor) -> Tensor:
    a = net.a(torch.tanh(x))
    with packing(net):
        b: Tensor = net.b(x)
    return a + b


@scenario(
    row(
        "a transform is somebody else's",
        r"RuntimeError: vmap",
        (caller_state, "temporarily_clear_interpreter_stack", nullcontext),
    ),
    layers={"a": lambda: nn.Dropout(0.5), "b": Shift},
    order="ba",
    launched="b a",
)
def waits_for_a_transform(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    b: Tensor = torch.vmap(net.b)(x)
    return a + b


# --- regions in the code's order


def in_order_but(reason: str) -> tuple[Any, str, Any]:
    """What keeps the code's order does so for all reasons but one."""
    original = schedule.must_keep_code_order

    def kept(modes_before: tuple[int, int]) -> str:
        found = original(modes_before)
        return "" if reason in found else found

    return schedule, "must_keep_code_order", kept


@scenario(
    row("order under hooks on saved tensors", NUMBERS, in_order_but("hooks see")),
    layers=linears("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def under_hooks(net: Any, x: Tensor) -> Tensor:
    with packing(net):
        a = net.a(torch.tanh(x))
    b: Tensor = net.b(x)
    return a + b


class Through(torch.autograd.Function):
    """Calls a layer in its forward."""

    @staticmethod
    def forward(ctx: Any, net: Any, x: Tensor) -> Tensor:
        result: Tensor = net.a(x)
        return result * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0] * 2


@scenario(
    row("order inside a function", NUMBERS, in_order_but("autograd.Function")),
    row("that a function's code runs", NUMBERS, (code_order, "inside_a_function", lambda: False)),
    layers=shifts("abc"),
    order="cba",
    launched="c a b",
    forced=("a",),
)
def inside_a_function(net: Any, x: Tensor) -> Tensor:
    a: Tensor = Through.apply(net, net.c(x))
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("order inside a transform", ERROR, in_order_but("transform")),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def inside_a_transform(net: Any, x: Tensor) -> Tensor:
    a = torch.vmap(net.a)(x)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("order in backward", ERROR, in_order_but("backward")),
    layers=shifts("abc"),
    order="cba",
    launched="c a b",
    forced=("a",),
)
def inside_backward(net: Any, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    c = net.c(x)
    c.register_hook(lambda grad: net.a(grad).detach())
    (grad,) = torch.autograd.grad(c.sum(), x)
    b: Tensor = net.b(x)
    return b + grad + net.c.weight


class Counting(TorchFunctionMode):
    """Notes when it sees a linear layer compute."""

    def __init__(self, notes: list[Any]) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and not isinstance(args[0], FakeTensor):
            self.notes.append(func.__name__)
        return func(*args, **(kwargs or {}))


@scenario(
    row("order under a mode of the code's", NUMBERS, in_order_but("a mode is on")),
    layers=linears("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def under_a_mode(net: Any, x: Tensor) -> Tensor:
    with Counting(net.notes):
        a = net.a(x)
    b: Tensor = net.b(x)
    return a + b


# --- random numbers


def drawing(how: str) -> tuple[Any, str, Any]:
    """The random state of what waits is not kept, or not gone on from, or left as it was there."""
    original = random_draws.drawing_as_if_now

    def later(draws: Any, run: Callable[[], Any], draw_at: Any) -> Callable[[], Any]:
        state = torch.get_rng_state()
        kept = original(draws, run, draw_at)
        if how == "not advanced":
            torch.set_rng_state(state)

        return run if how == "not kept" else kept

    return schedule, "drawing_as_if_now", later


def random_state_left() -> tuple[Any, str, Any]:
    """A later run leaves the generator where it stands then."""
    original = random_draws.drawing_as_if_now

    def drawing(draws: Any, run: Callable[[], Any], draw_at: Any) -> Callable[[], Any]:
        states: list[Tensor] = []

        def noting() -> Any:
            result = run()
            states.append(torch.get_rng_state())
            return result

        kept = original(draws, noting, draw_at)

        def later() -> Any:
            result = kept()
            torch.set_rng_state(states.pop())
            return result

        return later

    return schedule, "drawing_as_if_now", drawing


@scenario(
    row("the random state of then", RANDOM, drawing("not kept")),
    row("the generator goes on as if it had drawn", RANDOM, drawing("not advanced")),
    row("the generator is put back", RANDOM, random_state_left()),
    layers={"a": lambda: nn.Dropout(0.5), "b": Shift},
    order="ba",
    launched="b a",
)
def dropout(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    noisy = torch.rand(8)
    b: Tensor = net.b(x)
    return a + noisy + b + torch.rand(8)
