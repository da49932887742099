"""What was measured of a step: every kernel and transfer, merged into a timeline when asked."""

from collections import deque
from collections.abc import Mapping, Sequence

from baechi.backend.spans import timeline_of
from baechi.cost.clock import COMPUTE, Job
from baechi.records.cluster import HOST
from baechi.records.timeline import Phase, Span, Timeline

_TASKS_KEPT = 500_000


class Operation(Job):
    """A kernel or a transfer of an operator.

    Args:
        device, target, amount: as for `Job`.
        what: the operator.
        layer: the layer it belongs to, with the number of its call.
        phase: the phase it belongs to.
    """

    __slots__ = ("layer", "phase", "what")

    def __init__(self, device: int, target: int, amount: float, what: str, layer: str, phase: Phase) -> None:
        super().__init__(device, target, amount)
        self.what = what
        self.layer = layer
        self.phase = phase


class StepRecord:
    """The tasks of one step: from a call of a model to the next.

    Args:
        names: the devices' names.
        start_s: the host's clock at its beginning.
        last: by device, the last kernel that was issued to it before.
    """

    def __init__(self, names: Sequence[str], start_s: float, last: Mapping[int, Job] | None = None) -> None:
        self.ends = (*names, HOST)
        self.start_s = start_s
        self.last = last or {}
        self.peak_bytes: Mapping[str, int] = {}
        self.host_s = 0.0
        self.jobs: deque[Operation] = deque(maxlen=_TASKS_KEPT)  # bounded: work outside steps would grow it

    def next(self, start_s: float) -> "StepRecord":
        """The record of the step after this one."""
        last = {job.device: job for job in self.jobs if job.target == COMPUTE}
        return StepRecord(self.ends[:-1], start_s, {**self.last, **last})

    def timeline(self, *, by_operator: bool = False) -> Timeline:
        """The step as a timeline. All its tasks must be timed."""
        sent = [job for job in self.jobs if job.target != COMPUTE]
        counters = {
            "kernels": len(self.jobs) - len(sent),
            "transfers": len(sent),
            "transfer_bytes": sum([int(job.amount) for job in sent]),
            "host_us": round(1e6 * self.host_s),
        }
        ran = [self._span(job, by_operator=by_operator) for job in self.jobs]
        before_s = {self.ends[device]: job.end_s - self.start_s for device, job in self.last.items()}
        return timeline_of(ran, self.peak_bytes, counters, merge=not by_operator, before_s=before_s)

    def _span(self, job: Operation, *, by_operator: bool) -> Span:
        where = self.ends[job.device]
        if job.target != COMPUTE:
            where = f"{where}>{self.ends[job.target]}"
        kind = "compute" if job.target == COMPUTE else "transfer"
        parts = (job.layer, job.what) if by_operator else (job.layer,)
        name = "/".join([part for part in parts if part])
        start_s, end_s = max(0.0, job.start_s - self.start_s), max(0.0, job.end_s - self.start_s)
        size_bytes = int(job.amount) if kind == "transfer" else 0
        return Span(kind, name, where, start_s, end_s, job.phase, size_bytes)  # type: ignore[arg-type]
