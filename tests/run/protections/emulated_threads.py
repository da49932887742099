"""Checks below a model: gradients that travel, and threads of the emulated host."""

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from architectures.base import noise, seeded
from backend.virtual.machine.by_hand import DEVICES, after, cluster_of, compute, host_s, on, side, zeros
from run.protections.models import linear
from run.protections.protocol import check, deviations
from run.protections.rows import RACE, nothing, row, when_called_by
from run.protections.scenarios import SCENARIOS
from torch import Tensor, nn

import baechi
from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.machine import threads as virtual_threads
from baechi.backend.virtual.machine.streams import Host
from baechi.backend.way import Way
from baechi.errors import StreamRaceError
from baechi.run.launch import thread_launcher


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
        patch.setattr(VirtualDevices, "claim", nothing)
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
    """Two threads from outside pass the run token on; each must choose another one to go on."""
    run_token = virtual_threads.RunToken()
    waiting = [virtual_threads._Runner(Host(), place, runs=False) for place in (0, 1)]
    run_token.ready(waiting)
    both, errors = threading.Barrier(2), []
    urgency = virtual_threads._urgency

    def meeting(turn: int, runner: Any) -> Any:
        if turn == 2:  # the last one that is looked at: now a thread has chosen, and not said so
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
        return urgency(turn, runner)

    def passes() -> None:
        try:
            run_token._pass_on(run_token.runner(Host()))
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
