"""Logical time: when each kernel and transfer starts and ends.

The host issues in program order and runs ahead. Jobs are timed on request, in the order in which they
get ready: engines and channels serve in that order (`baechi.cost.machine`). A job issued later cannot
be ready before the host's clock, so all times up to there are final.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from baechi.cost.machine import Machine
from baechi.records.timeline import Phase

COMPUTE = -1


class Job:
    """A kernel or a transfer.

    Args:
        device: where it runs, or where a transfer comes from.
        target: where a transfer goes; `COMPUTE` for a kernel.
        amount: seconds of a kernel, bytes of a transfer.
        what: the operator.
        layer: the layer it belongs to, with the number of its call.
        phase: the phase it belongs to.
    """

    __slots__ = (
        "amount", "device", "end_s", "layer", "missing", "number", "phase", "ready_s", "start_s", "target",
        "waiters", "what",
    )  # fmt: skip

    def __init__(self, device: int, target: int, amount: float, what: str, layer: str, phase: Phase) -> None:
        self.device = device
        self.target = target
        self.amount = amount
        self.what = what
        self.layer = layer
        self.phase = phase
        self.ready_s = 0.0
        self.start_s = 0.0
        self.end_s = -1.0
        self.missing = 0
        self.number = 0
        self.waiters: list[Job] | None = []

    @property
    def timed(self) -> bool:
        """Whether it is known when it runs."""
        return self.waiters is None


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

    def submit(self, job: Job, issued_s: float, after: Iterable[Job]) -> None:
        """Take a task that the host issued.

        Args:
            job: the task.
            issued_s: the host's clock when it has issued it.
            after: what must end before it starts.
        """
        self._counter += 1
        job.number = self._counter
        job.ready_s = issued_s
        for other in after:
            if other.waiters is None:
                if other.end_s > job.ready_s:
                    job.ready_s = other.end_s
            else:
                other.waiters.append(job)
                job.missing += 1
        self.untimed += 1
        if not job.missing:
            self._queue(job)

    def settle(self, until_s: float) -> None:
        """Time all jobs that are ready by then."""
        while self._ready and self._ready[0][0] <= until_s:
            self._time(heappop(self._ready)[2])

    def finish(self, jobs: Iterable[Job]) -> float:
        """Time these tasks, and all that comes before them; returns when the last one ends.

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
            span = self._machine.compute(job.device, job.ready_s, job.amount)
        else:
            span = self._machine.send(job.device, job.target, job.ready_s, int(job.amount))
        job.start_s, job.end_s = span
        waiters, job.waiters = job.waiters or (), None  # None marks it as timed
        self.untimed -= 1
        for other in waiters:
            other.ready_s = max(other.ready_s, job.end_s)
            other.missing -= 1
            if not other.missing:
                self._queue(other)
