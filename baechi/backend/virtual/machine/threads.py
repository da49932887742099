"""Threads of the host on an emulated cluster: one runs at a time, so that a program repeats exactly.

A thread runs until it waits or ends; then the run token goes to the one with the earliest logical clock
among those that can continue. A tie goes to the one first in the plan, then to the one that asked first.
A thread that waited for a flag takes over its setter's vector clock, and its time if that is later.

An exception of a signal handler (Ctrl-C) may come between any two lines, in the main thread: it goes on
without the token. So what is interrupted can be repeated, and who wakes looks whether its flag is up.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet

from baechi.backend.flag import LockFlag
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
        is_off: whether starting it was interrupted: it runs nothing.
    """

    host: Host
    position: int
    runs: bool = True
    turn: LockFlag = field(default_factory=LockFlag)
    is_off: bool = False


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
        host = self._host()
        with self._baton.lock:
            if self._up is None:
                self._up = Host(host.now_s, host.seen)
            self._baton.add(self._waiting)
            self._waiting = []

    def is_set(self) -> bool:
        """Whether it is up."""
        return self._up is not None

    def wait(self) -> bool:
        """Wait until it is up."""
        runner = self._baton.runner(self._host())
        try:
            while self._is_awaited_by(runner):
                self._baton.give_up(runner)
        except BaseException:  # Ctrl-C: this thread waits no more
            with self._baton.lock:
                self._waiting = [other for other in self._waiting if other is not runner]
            raise
        assert self._up is not None
        host = self._host()
        host.now_s = max(host.now_s, self._up.now_s)
        host.learn(self._up.seen)
        return True

    def _is_awaited_by(self, runner: _Runner) -> bool:
        """Whether it is down; then the thread is told when it goes up."""
        with self._baton.lock:
            if self._up is None and runner not in self._waiting:
                self._waiting.append(runner)
            return self._up is None


class RunToken:
    """Decides which thread runs: the one with the token. Others wait until it is passed to them.

    Attributes:
        lock: held while who waits, and who can go on, is looked at or changed.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
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
        with self.lock:
            self.add(runners)

    def add(self, runners: list[_Runner]) -> None:
        """The same, where the lock is held."""
        there = [runner for _, runner in self._ready]
        for runner in runners:
            if runner not in there:
                self._counter += 1
                self._ready.append((self._counter, runner))

    def spawn(self, function: Callable[[], None], host: Host, position: int) -> Callable[[], None]:
        """Start a thread; it runs when its turn comes."""
        runner = _Runner(host, position, runs=False)
        self._runners.add(runner)

        def run() -> None:
            self._own.runner = runner
            runner.turn.wait()
            if runner.is_off:
                return
            try:
                function()
            finally:
                self._forget(runner)
                self._pass_on(runner)

        try:
            join = started(run)
            self.ready([runner])
        except BaseException:  # Ctrl-C: nobody waits for it
            runner.is_off = True
            self._forget(runner)
            runner.turn.set()
            raise
        return join

    def _forget(self, runner: _Runner) -> None:
        """A thread takes part no more."""
        with self.lock:
            self._runners.discard(runner)
            self._ready = [entry for entry in self._ready if entry[1] is not runner]

    def give_up(self, runner: _Runner) -> None:
        """Let others run until the calling thread can go on."""
        try:
            self._pass_on(runner)
            runner.turn.wait()
        except BaseException:  # Ctrl-C: this thread continues without the token
            with self.lock:
                runner.runs = True
                self._ready = [entry for entry in self._ready if entry[1] is not runner]
            raise
        if self._stuck:
            raise RuntimeError("every thread of the emulated host waits for another: none can continue")

    def give_way(self, host: Host) -> None:
        """Let threads with earlier clocks run first."""
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
        with self.lock:
            self._stuck = True
            for other in self._runners:
                other.turn.set()

    def _pass_on(self, runner: _Runner) -> None:
        with self.lock:
            runner.runs = False
            runner.turn.clear()
            if self._ready:
                chosen = min(self._ready, key=lambda entry: _urgency(*entry))
                chosen[1].runs = True
                chosen[1].turn.set()
                self._ready.remove(chosen)  # at last: interrupted before, it is chosen again
            elif not any(other.runs for other in self._runners):  # a deadlock: each wakes, and raises
                self._stuck = True
                for other in self._runners:
                    other.turn.set()


def _urgency(turn: int, runner: _Runner) -> tuple[float, int, int]:
    return runner.host.now_s, runner.position, turn
