"""The sum of gradients over replicas: on a ring of devices, one of each replica.

compute  [B0] [cat]-----------------[/ R]       it begins when all replicas have what is added up, on a
sums               [..........]                 stream of its own; the ring says how long it takes
"""

from dataclasses import dataclass

from baechi.backend.virtual.machine.record import Operation, StepRecord
from baechi.backend.virtual.machine.streams import Stream


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum that was issued.

    Args:
        job: what the step notes of it.
        record: of which step.
        stream: on which it runs.
        epoch: its number there.
        ready_s: when its device has what is added up; over ranks, when all of them have.
        taken_s: how long it takes.
    """

    job: Operation
    record: StepRecord
    stream: Stream
    epoch: int
    ready_s: float
    taken_s: float

    def run(self) -> None:
        """Run it, behind those that were issued before."""
        last = self.stream.last
        job = self.job
        job.start_s = max(self.ready_s, 0.0 if last is None else last.end_s)
        job.over_s = job.end_s = job.start_s + self.taken_s
        job.waiters = None
        self.stream.last = job
        self.record.jobs.append(job)
