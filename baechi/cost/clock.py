"""Logical time: when each kernel, layer, task and transfer starts and ends.

    emulator   submits kernels and transfers        ┐
    simulator  submits layers and transfers         ├─▶ Clock ─▶ Machine: engines and channels
    pipelines  submit tasks and transfers           ┘

The host issues in program order and runs ahead. Jobs are timed on request, in the order in which they
get ready: engines and channels serve in that order (`baechi.cost.machine`). A job issued later cannot
be ready before the host's clock, so all times up to there are final.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from baechi.cost.machine import Machine

COMPUTE = -1


class Job:
    """Work of a device's engine, or a transfer.

    Args:
        device: where it runs, or where a transfer comes from.
        target: where a transfer goes; `COMPUTE` for work.
        amount: seconds of work, bytes of a transfer.
        least_s: when it ends at the earliest: a slow host issues its last kernel late.

    Attributes:
        start_s, over_s, end_s: when it starts; when it would be over, had the host issued all of it in time;
            when it ends.
    """

    __slots__ = (
        "amount", "device", "early", "end_s", "least_s", "missing", "number", "over_s", "ready_s", "start_s",
        "target", "waiters",
    )  # fmt: skip

    def __init__(self, device: int, target: int, amount: float, least_s: float = 0.0) -> None:
        self.device = device
        self.target = target
        self.amount = amount
        self.least_s = least_s
        self.ready_s = 0.0
        self.start_s = self.over_s = 0.0
        self.end_s = -1.0
        self.missing = 0
        self.number = 0
        self.waiters: list[Job] | tuple[()] | None = ()  # a list from the first one on
        self.early: dict[Job, float] | None = None

    @property
    def timed(self) -> bool:
        """Whether it is known when it runs."""
        return self.waiters is None

    def may_start_s(self, other: "Job") -> float:
        """When a job may start, as far as it waits for another one, which is timed."""
        if self.early is None or other not in self.early:
            return other.end_s
        return other.over_s - self.early[other]


class Clock:
    """Computes when jobs start and end.

    Args:
        machine: the engines and channels they share.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._ready: list[tuple[float, int, Job]] = []
        self._counter = 0
        self.untimed = 0

    def submit(
        self, job: Job, issued_s: float, after: Iterable[Job], early: Sequence[tuple[Job, float]] = ()
    ) -> None:
        """Take a job that the host issued."""
        self._counter += 1
        job.number = self._counter
        job.ready_s = issued_s
        if early:
            job.early = {}
            for other, early_s in early:
                job.early[other] = min(early_s, job.early.get(other, early_s))
            after = (*after, *job.early)
        for other in after:
            if other.waiters is None:
                there_s = other.end_s if job.early is None else job.may_start_s(other)
                if there_s > job.ready_s:
                    job.ready_s = there_s
                continue
            if other.waiters:
                other.waiters.append(job)
            else:
                other.waiters = [job]
            job.missing += 1
        self.untimed += 1
        if not job.missing:
            self._queue(job)

    def settle(self, until_s: float) -> None:
        """Time all jobs that are ready by then."""
        while self._ready and self._ready[0][0] <= until_s:
            self._time(heappop(self._ready)[2])

    def finish(self, jobs: Iterable[Job]) -> float:
        """Time these jobs, and all that comes before them; returns when the last one ends.

        One that an exception of a signal's handler kept from getting ready never runs, and is not waited for.
        """
        last_s = 0.0
        for job in jobs:
            while self._ready and not job.timed:  # earlier ready ones first: they may take the engine before
                self._time(heappop(self._ready)[2])
            last_s = max(last_s, job.end_s)
        return last_s

    def finish_all(self) -> float:
        """Time everything; returns when the last of it ends."""
        last_s = 0.0
        while self._ready:
            job = heappop(self._ready)[2]
            self._time(job)
            last_s = max(last_s, job.end_s)
        return last_s

    def _queue(self, job: Job) -> None:
        heappush(self._ready, (job.ready_s, job.number, job))

    def _time(self, job: Job) -> None:
        if job.target == COMPUTE:
            job.start_s, job.over_s = self._machine.compute(job.device, job.ready_s, job.amount, job.least_s)
            job.end_s = max(job.over_s, job.least_s)
        else:
            job.start_s, job.over_s = self._machine.send(job.device, job.target, job.ready_s, int(job.amount))
            job.end_s = job.over_s
        waiters, job.waiters = job.waiters or (), None  # None marks it as timed
        self.untimed -= 1
        for other in waiters:
            there_s = job.end_s if other.early is None else other.may_start_s(job)
            if there_s > other.ready_s:
                other.ready_s = there_s
            other.missing -= 1
            if not other.missing:
                self._queue(other)
