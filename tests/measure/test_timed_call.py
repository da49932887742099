"""Calls on a device whose clock, and the host's, a test moves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baechi.backend.real.driver import Driver
from baechi.backend.real.stopwatch import Stopwatch
from baechi.measure.timed_call import Call, CallClock, Took, typical


class Queue(Driver):
    """A device that does one thing after the other, as soon as the host has asked for it."""

    def __init__(self) -> None:
        self.now_s = self.free_s = 0.0
        self.spins = 0

    def has_streams(self, device: torch.device) -> bool:
        return True

    def host_s(self) -> float:
        return self.now_s

    def synchronize(self, device: torch.device) -> None:
        self.now_s = max(self.now_s, self.free_s)

    def timed_event(self, device: torch.device) -> Any:
        self.free_s = max(self.free_s, self.now_s)
        return self.free_s

    def elapsed_s(self, first: Any, last: Any) -> float:
        return float(last - first)

    def spin(self, device: torch.device, seconds: float) -> None:
        self.spins += 1
        self.launch(1e-6, seconds)

    def launch(self, host_s: float, device_s: float) -> None:
        """The host asks for a kernel."""
        self.now_s += host_s
        self.free_s = max(self.free_s, self.now_s) + device_s


def timed(clock: CallClock, run: Callable[[], None]) -> Call:
    call = clock.begin("call")
    run()
    clock.end(call)
    clock.watch.wait()
    return call


def warmed(driver: Queue, run: Callable[[], None]) -> tuple[CallClock, Took]:
    """A call that was warmed up, and what it then took."""
    clock, rounds_s = CallClock(Stopwatch(torch.device("cpu"), driver)), list[float]()
    while not clock.is_warm(rounds_s):
        call = timed(clock, run)
        rounds_s.append(clock.took(call).device_s)
        clock.learn(call)
    return clock, clock.took(timed(clock, run))


@pytest.mark.parametrize("host_s", [1e-6, 30e-6, 2e-3])
def test_host_and_device_apart(host_s: float) -> None:
    """Ten kernels of 5 us each, however long the host takes to ask for them."""
    driver = Queue()
    _, took = warmed(driver, lambda: [driver.launch(host_s, 5e-6) for _ in range(10)] and None)
    assert took.behind and driver.spins
    assert took.device_s == pytest.approx(50e-6) and took.host_s == pytest.approx(10 * host_s)


def test_a_call_that_waits() -> None:
    """It is not kept waiting for a spin."""
    driver = Queue()

    def run() -> None:
        driver.launch(2e-6, 50e-6)
        driver.synchronize(torch.device("cpu"))
        driver.launch(2e-6, 50e-6)

    _, took = warmed(driver, run)
    assert took.host_s == pytest.approx(54e-6) and took.device_s == pytest.approx(104e-6)


def test_a_call_that_is_slow_at_first() -> None:
    """Libraries load, memory is taken: only what comes after counts."""
    driver, costs_s = Queue(), iter([1.0, 0.5, 0.01])
    _, took = warmed(driver, lambda: driver.launch(next(costs_s, 3e-6), 5e-6))
    assert took == (pytest.approx(5e-6), pytest.approx(3e-6), True)
    assert not any(costs_s)


def test_calls_inside_calls() -> None:
    """The inner one waits for nothing: it would lie in the time of the outer one."""
    driver = Queue()
    clock = CallClock(Stopwatch(torch.device("cpu"), driver))
    outer = clock.begin("outer")
    inner = clock.begin("inner", inside=True)
    driver.launch(1e-6, 7e-6)
    clock.end(inner)
    clock.end(outer)
    clock.learn(inner)
    assert clock.took(inner).device_s == pytest.approx(8e-6) and not driver.spins


def test_the_middle_counts() -> None:
    """Of those that were behind, if there are any; an outlier is none."""
    behind = [Took(seconds, seconds / 2) for seconds in (1.0, 1.1, 0.9, 50.0, 1.0)]
    assert typical([*behind, Took(7.0, 7.0, behind=False)]) == (1.0, 0.5, True)
    assert typical([Took(7.0, 6.0, behind=False)]) == (7.0, 6.0, False)
    assert Took(1.0, 2.0) + Took(3.0, 4.0, behind=False) == (4.0, 6.0, False)
