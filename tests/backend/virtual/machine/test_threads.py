"""Threads of an emulated host, at clocks of their own."""

import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from backend.virtual.machine.by_hand import (
    DEVICES,
    after,
    cluster_of,
    compute,
    host_s,
    on,
    row,
    rows,
    side,
    zeros,
)

from baechi.backend.flag import Flag
from baechi.backend.virtual.current import at_work


class Threads:
    """Threads of an emulated host that say what they did, and when."""

    def __init__(self) -> None:
        self.said: list[tuple[str, float]] = []
        self.errors: list[BaseException] = []

    def say(self, what: str) -> None:
        self.said.append((what, host_s()))

    def start(self, position: int, function: Callable[[], None]) -> Flag:
        """Run a function in a thread; the flag is up when it is over."""
        over = DEVICES.flag()

        def run() -> None:
            try:
                function()
            except RuntimeError as error:
                self.errors.append(error)
            finally:
                over.set()

        DEVICES.spawn(run, position)
        return over


def test_threads_run_one_at_a_time_in_the_order_of_the_plan() -> None:
    """A new thread runs when the others wait; at one clock the first in the plan is the first."""
    threads = Threads()
    with cluster_of(launch_s=1.0):
        zeros("cpu:0")

        def work(name: str) -> None:
            threads.say(name)
            zeros("cpu:0")
            threads.say(name)

        overs = [threads.start(place, partial(work, f"thread {place}")) for place in (2, 0, 1)]
        threads.say("host")
        for over in overs:
            over.wait()
        threads.say("host")
    assert threads.said == [
        ("host", 1.0),
        ("thread 0", 1.0),
        ("thread 0", 2.0),
        ("thread 1", 1.0),
        ("thread 1", 2.0),
        ("thread 2", 1.0),
        ("thread 2", 2.0),
        ("host", 2.0),
    ]


def test_the_thread_with_the_earliest_clock_runs() -> None:
    """Of the threads that can go on, the one whose clock is behind goes first, whatever the plan says."""
    threads = Threads()
    with cluster_of(launch_s=1.0):
        up = DEVICES.flag()

        def work(name: str, kernels: int) -> None:
            for _ in range(kernels):
                zeros("cpu:0")
            threads.say(name)
            up.wait()
            threads.say(name)

        overs = [
            threads.start(0, partial(work, "late", 3)),
            threads.start(1, partial(work, "early", 1)),
            threads.start(2, lambda: (threads.say("sets"), up.set())[0]),
        ]
        for over in overs:
            over.wait()
    assert threads.said == [
        ("late", 3.0),
        ("early", 1.0),
        ("sets", 0.0),
        ("early", 1.0),  # now it is at 1, the other at 3
        ("late", 3.0),
    ]


def test_who_waited_is_no_earlier_than_who_set() -> None:
    """A waiter goes on at the clock at which the flag was set, and is not set back by one set long ago."""
    threads = Threads()
    with cluster_of():
        up = DEVICES.flag()

        def work() -> None:
            zeros("cpu:0", 9)[0].item()
            up.set()
            torch.ones(5, device="cpu:0").sum().item()
            threads.say("thread")

        over = threads.start(0, work)
        assert not up.is_set()
        up.wait()
        threads.say("host")
        over.wait()
        threads.say("host")
        assert up.is_set()
        up.wait()
        threads.say("host")
        torch.full((1,), 1.0, device="cpu:1")
        assert row("full") == ("full", "cpu:1", 22.0, 23.0)
    assert threads.said == [("thread", 22.0), ("host", 10.0), ("host", 22.0), ("host", 22.0)]


def test_who_waited_knows_what_the_setter_waited_for() -> None:
    """What a thread's host has seen to be over needs no event in the thread that waited for it."""
    threads = Threads()
    with cluster_of():
        x = zeros("cpu:0", 3)
        over = threads.start(0, lambda: x[0].item() and None)
        over.wait()
        with on(side("cpu:0")) as aside:
            x + 1
        after(compute("cpu:0"), aside)
        assert row("add") == ("add", "cpu:0", 4.0, 10.0)


def test_a_new_thread_knows_what_its_maker_waited_for() -> None:
    """A thread starts at its maker's clock, with what that has seen to be over."""
    threads = Threads()
    with cluster_of():
        x = zeros("cpu:0", 3)
        x[0].item()

        def work() -> None:
            threads.say("thread")
            with on(side("cpu:0")) as aside:
                x + 1
            after(compute("cpu:0"), aside)

        threads.start(0, work).wait()
    assert threads.said == [("thread", 4.0)] and threads.errors == []


def test_threads_that_wait_for_each_other_are_told() -> None:
    """If every thread waits, each of them raises, ends, and nobody hangs."""
    threads = Threads()
    before = set(threading.enumerate())
    with cluster_of():
        left, right = DEVICES.flag(), DEVICES.flag()
        threads.start(0, lambda: left.wait() and right.set())
        threads.start(1, lambda: right.wait() and left.set())
        with pytest.raises(RuntimeError, match="waits for another"):
            left.wait()
        for thread in set(threading.enumerate()) - before:
            thread.join()
    assert ["waits for another" in str(error) for error in threads.errors] == [True, True]
    assert at_work() is None


def test_a_flag_that_nobody_sets() -> None:
    """The only thread that there is cannot wait for itself."""
    with cluster_of():
        flag = DEVICES.flag()
        with pytest.raises(RuntimeError, match="none can continue"):
            flag.wait()
        assert not flag.is_set()


def test_threads_share_the_devices() -> None:
    """What two threads issue lands on the same streams, in the order in which they issued it."""
    threads = Threads()
    with cluster_of(launch_s=1.0):
        zeros("cpu:0", 10)
        over = threads.start(0, lambda: torch.ones(3, device="cpu:0").zero_() and None)
        over.wait()
        assert host_s() == 3.0
        zeros("cpu:0", 1)
        assert rows() == [
            ("zeros", "cpu:0", 1.0, 11.0),
            ("ones", "cpu:0", 11.0, 14.0),
            ("zero_", "cpu:0", 14.0, 20.0),
            ("zeros", "cpu:0", 20.0, 21.0),
        ]


def test_threads_run_before_the_emulation_ends() -> None:
    """A thread that nobody waits for runs all the same, and does not hang for ever."""
    ran = threading.Event()
    with cluster_of():
        DEVICES.flag()
        DEVICES.spawn(ran.set, 0)
    assert ran.is_set()
