"""Threads of the host on an emulated cluster: one runs at a time, so that a program repeats exactly.

A thread runs until it waits or ends; then the run token goes to the one with the earliest logical clock
among those that can continue. A tie goes to the one first in the plan, then to the one that asked first.
A thread that waited for a flag takes over its setter's vector clock, and its time if that is later.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet

from baechi.backend.thread import started
from baechi.backend.virtual.machine.streams import Host


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Runner:
    """A thread that takes part.

    Args:
        host: its clock.
        position: its place in the plan.
        runs: whether it has the run token; threads from outside run without being asked.
        turn: set when it gets the run token.
    """

    host: Host
    position: int
    runs: bool = True
    turn: threading.Event = field(default_factory=threading.Event)


class VirtualFlag:
    """A flag of the emulated host.

    Args:
        run_token: decides which thread runs.
        host: the calling thread's clock.
    """

    def __init__(self, run_token: "RunToken", host: Callable[[], Host]) -> None:
        self._baton = run_token
        self._host = host
        run_token.runner(host())
        self._up: Host | None = None
        self._waiting: list[_Runner] = []

    def set(self) -> None:
        """Raise the flag: the waiting threads can continue."""
        if self._up is None:
            host = self._host()
            self._up = Host(host.now_s, host.seen)
            self._baton.ready(self._waiting)
            self._waiting = []

    def is_set(self) -> bool:
        """Whether it is up."""
        return self._up is not None

    def wait(self) -> bool:
        """Wait until it is up.

        Raises:
            RuntimeError: every thread waits, so none can raise the flag (a deadlock).
        """
        if self._up is None:
            runner = self._baton.runner(self._host())
            self._waiting.append(runner)
            try:
                self._baton.give_up(runner)
            except BaseException:  # Ctrl-C: this thread waits no more
                self._waiting = [other for other in self._waiting if other is not runner]
                raise
        assert self._up is not None
        host = self._host()
        host.now_s = max(host.now_s, self._up.now_s)
        host.learn(self._up.seen)
        return True


class RunToken:
    """Decides which thread runs: the one with the token. Others wait until it is passed to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: list[tuple[int, _Runner]] = []
        self._counter = 0
        self._own = threading.local()
        self._runners: WeakSet[_Runner] = WeakSet()
        self._stuck = False

    def runner(self, host: Host) -> _Runner:
        """The calling thread as one that takes part; one that came from outside is first in the plan."""
        own: _Runner | None = getattr(self._own, "runner", None)
        if own is None:
            own = self._own.runner = _Runner(host, -1)
            self._runners.add(own)
        return own

    def ready(self, runners: list[_Runner]) -> None:
        """These can go on, when their turn comes."""
        with self._lock:
            for runner in runners:
                self._counter += 1
                self._ready.append((self._counter, runner))

    def spawn(self, function: Callable[[], None], host: Host, position: int) -> Callable[[], None]:
        """Start a thread; it runs when its turn comes.

        Args:
            function: what it runs; it raises nothing.
            host: its clock.
            position: its place in the plan.

        Returns:
            Waits until the thread is gone.
        """
        runner = _Runner(host, position, runs=False)
        self._runners.add(runner)

        def run() -> None:
            self._own.runner = runner
            runner.turn.wait()
            try:
                function()
            finally:
                self._runners.discard(runner)
                self._pass_on(runner)

        join = started(run)
        self.ready([runner])
        return join

    def give_up(self, runner: _Runner) -> None:
        """Let others run until the calling thread can go on.

        Args:
            runner: the calling thread.

        Raises:
            RuntimeError: every thread waits (a deadlock).
        """
        self._pass_on(runner)
        try:
            runner.turn.wait()
        except BaseException:  # Ctrl-C: this thread continues without the token
            with self._lock:
                runner.runs = True
                self._ready = [entry for entry in self._ready if entry[1] is not runner]
            raise
        if self._stuck:
            raise RuntimeError("every thread of the emulated host waits for another: none can continue")

    def give_way(self, host: Host) -> None:
        """Let threads with earlier clocks run first.

        Args:
            host: the calling thread's clock.
        """
        runner = self.runner(host)
        self.ready([runner])
        self.give_up(runner)

    def finish(self, host: Host) -> None:
        """Run all other threads until they end. Those that would wait for ever get an error."""
        self.runner(host)
        last = _Runner(Host(math.inf), 0)  # an infinite clock: it is chosen after all others
        while self._ready:
            self.ready([last])
            self._pass_on(last)
            last.turn.wait()
        with self._lock:
            self._stuck = True
            for other in self._runners:
                other.turn.set()

    def _pass_on(self, runner: _Runner) -> None:
        with self._lock:
            runner.runs = False
            runner.turn.clear()
            if self._ready:
                chosen = min(self._ready, key=lambda entry: _urgency(*entry))
                self._ready.remove(chosen)
                chosen[1].runs = True
                chosen[1].turn.set()
            elif not any(other.runs for other in self._runners):  # a deadlock: each wakes, and raises
                self._stuck = True
                for other in self._runners:
                    other.turn.set()


def _urgency(turn: int, runner: _Runner) -> tuple[float, int, int]:
    return runner.host.now_s, runner.position, turn
