"""What is computed, sent, held and handed over: copies, ways into torch, failures, threads."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from backend.virtual.machine.by_hand import DEVICES, after, cluster_of, compute, host_s, on, side, zeros
from run.protections.of_order import writes_of_a_copy
from run.protections.protocol import (
    ERROR,
    FORCED,
    LEAK,
    NUMBERS,
    RACE,
    SCENARIOS,
    Shift,
    check,
    deviations,
    linear,
    linears,
    none_of,
    nothing,
    row,
    scenario,
    shifts,
    when_called_by,
)
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import baechi
from baechi.backend.transfer import Way
from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.machine import threads as virtual_threads
from baechi.backend.virtual.machine.streams import Host
from baechi.errors import StreamRaceError
from baechi.run.deferred import stand_ins, storage_use
from baechi.run.deferred import tensor as deferred
from baechi.run.guards import entrances
from baechi.run.guards.hooked import HookWatch
from baechi.run.launch import pending, thread_launcher
from baechi.run.launch.pending import Pending
from baechi.run.launch.thread_launcher import ThreadLauncher
from baechi.run.step import step
from baechi.run.step.step import Step

# --- deferred values become real


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


# --- transfers and copies


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


# --- ways into torch, and hooks


def entrances_but(*names: str) -> tuple[Any, str, Any]:
    """Some ways into torch are not watched."""
    return entrances, "_ENTRANCES", [one for one in entrances._ENTRANCES if one[1] not in names]


class Double(torch.autograd.Function):
    """Twice its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


def force_as_found(waits: Pending, tasks: Iterable[Any]) -> None:
    """Launches what is wanted first, then what that needs."""
    found = list(tasks)
    for task in found:
        found += [need for need in task.needs if need not in found]
    for task in found:
        waits.launcher.launch(task)


@scenario(
    row("what is forced launches in the code's order", FORCED, (Pending, "force", force_as_found)),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("mul",),
)
def chain_given_to_a_function(net: Any, x: Tensor) -> Tensor:
    a: Tensor = Double.apply(net.a(x) * 3)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("functions take values", NUMBERS, entrances_but("apply")),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def given_to_a_function(net: Any, x: Tensor) -> Tensor:
    a: Tensor = Double.apply(net.a(x))
    b: Tensor = net.b(x)
    return a + b


class Saves(torch.autograd.Function):
    """Computes nothing with its first input in forward, and saves it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return y * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (_,) = ctx.saved_tensors
        return None, grads[0] * 2


@scenario(
    row("functions take what waits to be written", ERROR, (entrances, "force_writers", nothing)),
    layers=shifts("abc"),
    order="cba",
    launched="c a b",
    forced=("add_",),
)
def written_and_given_to_a_function(net: Any, x: Tensor) -> Tensor:
    q, c = x * 1, net.c(x)
    with torch.no_grad():
        q.add_(net.a(x))
    saved: Tensor = Saves.apply(q, c)
    b: Tensor = net.b(x)
    return b + saved


@scenario(
    row("vmap takes values", ERROR, entrances_but("_add_batch_dim", "_process_batched_inputs")),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def given_to_vmap(net: Any, x: Tensor) -> Tensor:
    a = torch.vmap(torch.sin)(net.a(x))
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("torch.func takes values", ERROR, entrances_but("_wrap_for_grad")),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def given_to_grad(net: Any, x: Tensor) -> Tensor:
    a = torch.func.grad(lambda t: (t * t).sum())(net.a(x))
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("checkpointing takes values", ERROR, entrances_but("_checkpoint_without_reentrant_generator")),
    layers=shifts("ab"),
    order="ba",
    launched="a b",
    forced=("a",),
)
def given_to_a_checkpoint(net: Any, x: Tensor) -> Tensor:
    a = checkpoint(lambda t: torch.sin(t) * t, net.a(x), use_reentrant=False)
    b: Tensor = net.b(x)
    return a + b


@scenario(
    row("hooks see real tensors", NUMBERS, (HookWatch, "_hooked", none_of)),
    layers={**shifts("ab"), "c": lambda: nn.Sequential(Shift(), Shift())},
    setup=lambda net: hook_container(net),
    devices={"c.0": 1, "c.1": 0},
    order=["b", "a"],
    launched="a c.0 c.1 b",
    forced=("a", "c.1"),
)
def hooks_on_a_container(net: Any, x: Tensor) -> Tensor:
    a = net.a(x)
    c = net.c(a)
    b: Tensor = net.b(x)
    return b + c


def hook_container(net: Any) -> None:
    """Hooks that note what they see."""

    def before(module: nn.Module, args: Any) -> None:
        net.notes.append(type(args[0]).__name__)

    def after(module: nn.Module, args: Any, result: Any) -> None:
        net.notes.append(type(result).__name__)

    net.c.register_forward_pre_hook(before)
    net.c.register_forward_hook(after)


# --- failures, and what is held


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


# --- threads for what waits


class Deep(Shift):
    """Makes more autograd nodes than one."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.tanh(x)
        return super().forward(x)


def hand_over_without_waiting() -> tuple[Any, str, Any]:
    """The host goes on at once."""

    original = thread_launcher._Worker._hand_over

    def hand_over(self: Any, task: Any) -> None:
        if task is None:
            original(self, task)
        else:
            self._task = task
            self._go.set()

    return thread_launcher._Worker, "_hand_over", hand_over


@scenario(
    row("nodes are numbered as the host's", r"backward", (thread_launcher, "_number_as_ours", nothing)),
    row("the host's numbers are apart from the threads'", r"backward", (thread_launcher, "_APART", 0)),
    row("a thread has launched when the host goes on", ERROR, hand_over_without_waiting()),
    row("threads end with the step", r"threads", (thread_launcher._Worker, "end", nothing)),
    layers={**shifts("hbc"), "a": Deep},
    order="hbac",
    launched="h b a c",
    backward="c a b h",
    launchers=("threads",),
)
def in_a_thread(net: Any, x: Tensor) -> Tensor:
    h = net.h(x)
    a = net.a(h)
    b, c = net.b(x), net.c(x)
    result: Tensor = h + a + b + c
    return result


def in_the_thread(function: str) -> tuple[Any, str, Any]:
    """Threads for what waits do not call a function of torch's."""
    return torch, function, when_called_by("_work", nothing, getattr(torch, function))


@scenario(
    row(
        "leaving autocast in a thread",
        NUMBERS,
        in_the_thread("autocast_increment_nesting"),
        in_the_thread("autocast_decrement_nesting"),
    ),
    layers=linears("ab"),
    order="ba",
    launched="b a",
    launchers=("threads",),
)
def cast_once(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        a = net.a(x)
        first = F.linear(x, net.b.weight)
        b = net.b(x)
        second = F.linear(x * 3, net.b.weight)
    return a + b + first * second


SEEN: list[int] = []


class CountsThreads(Shift):
    """Notes how many threads it computes with."""

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, FakeTensor):
            SEEN.append(torch.get_num_threads())
        return super().forward(x)


@contextmanager
def others_use_more_threads() -> Iterator[None]:
    """This thread computes with two threads, and threads that begin now with three."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    other = threading.Thread(target=torch.set_num_threads, args=(3,))
    other.start()
    other.join()
    yield
    torch.set_num_threads(before)


@scenario(
    row("threads compute with as many threads", NUMBERS, in_the_thread("set_num_threads")),
    layers={"a": CountsThreads, "b": Shift},
    order="ba",
    launched="b a",
    launchers=("threads",),
)
def as_many_threads(net: Any, x: Tensor) -> Tensor:
    with others_use_more_threads():
        a = net.a(x)
        b: Tensor = net.b(x)
        result = a + b
    net.notes.append(SEEN.pop())
    return result


# --- checks of other kinds


class Adds(nn.Module):
    """The gradient of a sum goes to another device, and is part of another gradient here."""

    def __init__(self) -> None:
        super().__init__()
        self.far, self.near, self.last = linear(), linear(), linear()
        self.gradients: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        far, near = self.far(x), self.near(x)
        near.register_hook(lambda grad: self.gradients.append(grad.data_ptr()))
        twice = near * 2
        out: Tensor = self.last(near + far) + twice
        return out


@check(row("gradients that travel are held", r"added", (Way, "held", property(nothing, nothing))))
def gradients_that_travel() -> list[str]:
    """Autograd adds in place to what nobody else holds; what is sent is held until it has been read.

    It never adds where Python has looked at the storage, as emulated devices do, or under a mode: so
    this is not emulated, and in backward the devices look at nothing.
    """
    model, sent = seeded(Adds)(), []
    baechi.distribute(model, noise(3, 8), cluster=baechi.Cluster.virtual(2), device_map={"far": 1, "": 0})

    def copied(
        self: VirtualDevices, tensor: Tensor, place: str, streams: Any, *, gradient: bool = False
    ) -> Tensor:
        sent.append(tensor.data_ptr())
        return tensor.clone()

    model.gradients = []
    loss = model(noise(3, 8)).pow(2).sum()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualDevices, "copy", copied)
        patch.setattr(VirtualDevices, "place_of", lambda *_: "cpu:0")
        patch.setattr(VirtualDevices, "use", nothing)
        patch.setattr(VirtualDevices, "adopt", nothing)
        loss.backward()
    added = [grad for grad in model.gradients if grad in sent]
    return ["added to what is sent"] if added else [] if sent else ["nothing sent"]


def end_without_joining(worker: Any) -> None:
    """The host does not wait until the thread is gone."""
    while not worker._ended:
        worker._hand_over(None)


@check(
    row("threads are gone with the step", r"threads", (thread_launcher._Worker, "end", end_without_joining))
)
def threads_that_end_late() -> list[str]:
    """A thread that has launched all lives on until somebody waits for its end."""
    gates: list[threading.Event] = []

    def started_late(function: Callable[[], None]) -> Callable[[], None]:
        gate = threading.Event()
        gates.append(gate)
        thread = threading.Thread(target=lambda: (function(), gate.wait()), daemon=True)
        thread.start()
        return lambda: (gate.set(), thread.join())[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual_threads, "started", started_late)
        try:
            return deviations(next(one for one in SCENARIOS if one.name == "in_a_thread"), "threads")
        finally:
            for gate in gates:
                gate.set()


def spawned(names: Mapping[str, int], work: Callable[[str], None]) -> None:
    """Run threads of the emulated host, by name and place in the plan, to their ends."""
    overs = []
    for name, position in names.items():
        over = DEVICES.flag()

        def run(name: str = name, over: Any = over) -> None:
            work(name)
            over.set()

        DEVICES.spawn(run, position)
        overs.append(over)
    for over in overs:
        over.wait()


@check(
    row("who is first in the plan goes first", r"ran", (virtual_threads, "_urgency", lambda turn, _: turn))
)
def turns_of_threads() -> list[str]:
    """Threads at one clock run in the plan's order, not in that of their beginning."""
    ran: list[str] = []
    with cluster_of():
        spawned({"third": 2, "first": 0, "second": 1}, ran.append)
    return [] if ran == ["first", "second", "third"] else [f"ran {ran}"]


def flag_without_clock() -> list[tuple[Any, str, Any]]:
    """Flags say nothing of when they were set."""
    original = virtual_threads.VirtualFlag.set

    def raised(self: Any) -> None:
        original(self)
        self._up = Host(0.0, self._up.seen)

    return [(virtual_threads.VirtualFlag, "set", raised)]


@check(
    row(
        "who waits for a flag knows what its setter knew",
        RACE,
        (Host, "learn", when_called_by("wait", nothing, Host.learn)),
    ),
    row("who waits for a flag is no earlier than its setter", r"clock", *flag_without_clock()),
)
def flags_hand_over() -> list[str]:
    """A thread waits for a device; who waits for the thread may use what the device made."""
    try:
        with cluster_of():
            x, over = zeros("cpu:0", 3), DEVICES.flag()

            def waits() -> None:
                x[0].item()
                over.set()

            DEVICES.spawn(waits, 0)
            over.wait()
            late = host_s() >= 3.0  # writing three floats takes that long
            with on(side("cpu:0")) as aside:
                x.exp()
            after(compute("cpu:0"), aside)
    except StreamRaceError as error:
        return [f"StreamRaceError: {error}"]
    return [] if late else ["clock"]


def unlocked() -> Any:
    """Locks that lock nobody out."""
    return SimpleNamespace(Lock=nullcontext, Event=threading.Event, local=threading.local)


@check(
    row("one thread at a time says who goes on", r"ValueError", (virtual_threads, "threading", unlocked()))
)
def baton_passed_on_twice_at_once() -> list[str]:
    """Two threads from outside pass the baton on; each must choose another one to go on."""
    baton = virtual_threads.Baton()
    waiting = [virtual_threads._Runner(Host(), place, runs=False) for place in (0, 1)]
    baton.ready(waiting)
    both, errors = threading.Barrier(2), []
    urgency = virtual_threads._urgency

    def meeting(turn: int, runner: Any) -> Any:
        if turn == 2:  # the last one that is looked at: now a thread has chosen, and not said so
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
        return urgency(turn, runner)

    def passes() -> None:
        try:
            baton._pass_on(baton.runner(Host()))
        except ValueError as error:
            errors.append(f"ValueError: {error}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual_threads, "_urgency", meeting)
        threads = [threading.Thread(target=passes) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return errors + [f"waits: {one.position}" for one in waiting if not one.turn.is_set()]
