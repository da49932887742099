"""A thread for each target, for the length of one call.

    caller    submit k, k+1, begin ──▶ inbox   wait ◀── done k      submit k+2, acknowledge
    worker    launch k, launch k+1, finish k ────▶ done k, waits ...................... launch k+2, finish k+1

A worker launches what it has before it brings the results of the chunk before: so arguments travel while a
chunk computes. So it gets all chunks that it may have at once, and waits after each until the caller has seen
it, since that may hand over the next one.

An exception of a signal handler (Ctrl-C) may come between any two lines of the caller's thread, and what it
had in hand is lost. So a worker that is given up needs nothing of the caller: it runs to its end.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Generic, TypeVar

import torch

from baechi.backend.host_threads import AbstractHostThreads
from baechi.dispatch.replicas.replica import AbstractReplica, Launched
from baechi.dispatch.workers.abstract import AbstractWorkers, Done, Job
from baechi.dispatch.workers.inline import done_with
from baechi.run.state.caller_state import CallerState

_T = TypeVar("_T")


class ThreadWorkers(AbstractWorkers):
    """Runs each target's chunks in a thread of its own.

    Threads of the caller's settings: grad mode, autocast, default dtype and device. Modes and saved-tensor
    hooks of the caller's thread are not seen in them.

    Args:
        replica_at: gives a target's replica; called in the caller's thread.
        host: makes threads and flags.
    """

    def __init__(self, replica_at: Callable[[str], AbstractReplica], host: AbstractHostThreads) -> None:
        self._replica_at, self._host = replica_at, host
        self._workers: dict[str, _Worker] = {}
        self._reports: _Mailbox[_Report] = _Mailbox(host)
        self._unseen: list[_Report] = []

    def submit(self, job: Job) -> None:
        replica = self._replica_at(job.target)
        worker = self._workers.get(job.target)
        if worker is None:
            worker = _Worker(replica, self._host, self._reports)
            self._workers[job.target] = worker
            worker.start(len(self._workers) - 1)
        worker.submitted.append(job)

    def begin(self) -> None:
        for worker in self._workers.values():
            jobs, worker.submitted = worker.submitted, []
            if jobs:
                worker.inbox.put(*jobs)

    def wait(self) -> list[Done]:
        reports = self._reports.take()
        self._unseen += reports
        return [report.done for report in reports]

    def acknowledge(self) -> None:
        self.begin()
        seen, self._unseen = self._unseen, []
        for report in seen:
            report.seen.set()

    def drain(self) -> list[Done]:
        self.abandon()
        return [report.done for report in self._reports.take(waits=False)]

    def now_s(self) -> float:
        return self._host.now_s()

    def end(self) -> None:
        self.acknowledge()
        for worker in self._workers.values():
            worker.inbox.put(None)
        for worker in self._workers.values():
            worker.wait_for_end()
        self._workers.clear()

    def abandon(self) -> None:
        """Threads cannot be stopped: what runs ends, and what has not begun does not begin."""
        for worker in self._workers.values():
            worker.give_up()
        for worker in self._workers.values():
            worker.wait_for_end()
        self._workers.clear()


class _Mailbox(Generic[_T]):
    """What threads put in and one takes out."""

    def __init__(self, host: AbstractHostThreads) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._items: deque[_T] = deque()
        self._flag = host.flag()

    def put(self, *items: _T) -> None:
        """Put things in."""
        with self._lock:
            self._items += items
            self._flag.set()

    def take(self, *, waits: bool = True) -> list[_T]:
        """All that is in it; at least one thing, if it waits."""
        while True:
            with self._lock:
                if self._items or not waits:
                    found = list(self._items)
                    self._items.clear()
                    return found
                if self._flag.is_set():
                    self._flag = self._host.flag()
                flag = self._flag
            flag.wait()


class _Report:
    """A chunk that is done, until the caller has seen it."""

    def __init__(self, done: Done, host: AbstractHostThreads) -> None:
        self.done, self.seen = done, host.flag()


class _Worker:
    """A thread that runs the chunks of one target, in the order in which they are put in its inbox."""

    def __init__(
        self, replica: AbstractReplica, host: AbstractHostThreads, reports: _Mailbox[_Report]
    ) -> None:
        self.submitted: list[Job] = []
        self.inbox: _Mailbox[Job | None] = _Mailbox(host)
        self._replica, self._host, self._reports = replica, host, reports
        self._state = CallerState.now()
        self._device = torch.get_default_device()
        self._intra_op_threads = torch.get_num_threads()
        self._given_up = False
        self._report_unseen: _Report | None = None
        self._ended = host.flag()
        self._join: Callable[[], None] | None = None

    def start(self, position: int) -> None:
        """Start the thread."""
        self._join = self._host.spawn(self._run, position)

    def give_up(self) -> None:
        """Let it begin no chunk, and wait for nobody. It may be interrupted, and done again."""
        self._given_up = True
        self.inbox.put(None)
        report = self._report_unseen
        if report is not None:
            report.seen.set()

    def wait_for_end(self) -> None:
        """Wait until the thread is gone. One whose start was interrupted may still come, and ends."""
        if self._join is not None:
            self._ended.wait()
            self._join()

    def _run(self) -> None:
        try:
            torch.set_num_threads(self._intra_op_threads)  # the setting is per thread
            with self._state.restored(), self._on_default_device():
                self._work()
        finally:
            self._ended.set()

    def _on_default_device(self) -> torch.device | nullcontext[None]:
        return nullcontext() if torch.get_default_device() == self._device else self._device

    def _work(self) -> None:
        jobs: deque[Job] = deque()
        before: tuple[Job, Launched | BaseException] | None = None
        over = False
        while jobs or before is not None or not over:
            found = self.inbox.take(waits=not jobs and before is None)
            jobs += [job for job in found if job is not None]
            if self._given_up:
                jobs.clear()
            over = over or any(job is None for job in found)
            job = jobs.popleft() if jobs else None
            launched = None if job is None else (job, self._launch(job))
            if before is not None:
                self._report(*before)
            before = launched

    def _launch(self, job: Job) -> Launched | BaseException:
        try:
            return self._replica.launch(job.calls, divided=job.divided)
        except BaseException as error:  # the caller raises it
            return error

    def _report(self, job: Job, launched: Launched | BaseException) -> None:
        try:
            done = done_with(self._replica, job.number, launched)
        except BaseException as error:  # the caller raises it
            done = Done(job.number, error=error)
        self._host.give_way()  # by the clock, other chunks may have been done before
        self._report_unseen = report = _Report(done, self._host)
        self._reports.put(report)
        if not self._given_up:  # which is said before the report is looked for
            report.seen.wait()
        self._report_unseen = None
