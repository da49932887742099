"""Threads of the emulated host: who goes on, and what a flag hands over."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from backend.virtual.machine.by_hand import DEVICES, after, cluster_of, compute, host_s, on, side, zeros

from baechi.backend.virtual.machine import threads as virtual_threads
from baechi.backend.virtual.machine.streams import Host


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


def test_who_is_first_in_the_plan_goes_first() -> None:
    """Threads at one clock run in the plan's order, not in that of their beginning."""
    ran: list[str] = []
    with cluster_of():
        spawned({"third": 2, "first": 0, "second": 1}, ran.append)
    assert ran == ["first", "second", "third"]


def test_flags_hand_over_what_their_setter_knew() -> None:
    """A thread waits for a device; who waits for the thread may use what the device made."""
    with cluster_of():
        x, over = zeros("cpu:0", 3), DEVICES.flag()

        def waits() -> None:
            x[0].item()
            over.set()

        DEVICES.spawn(waits, 0)
        over.wait()
        assert host_s() >= 3.0  # writing three floats takes that long
        with on(side("cpu:0")) as aside:
            x.exp()
        after(compute("cpu:0"), aside)


def test_one_thread_at_a_time_says_who_goes_on() -> None:
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
    assert not errors and all(one.turn.is_set() for one in waiting)
