"""What was measured of a step: every kernel and transfer, merged into a timeline when asked."""

from collections import deque
from collections.abc import Mapping, Sequence

from baechi.backend.spans import timeline_of
from baechi.backend.virtual.machine.clock import COMPUTE, Task
from baechi.records.cluster import HOST
from baechi.records.timeline import Span, Timeline

_TASKS_KEPT = 500_000


class StepRecord:
    """The tasks of one step: from a call of a model to the next.

    Args:
        names: the devices' names.
        start_s: the host's clock at its beginning.
        last: by device, the last kernel that was issued to it before.
    """

    def __init__(self, names: Sequence[str], start_s: float, last: Mapping[int, Task] | None = None) -> None:
        self.ends = (*names, HOST)
        self.start_s = start_s
        self.last = last or {}
        self.peak_bytes: Mapping[str, int] = {}
        self.tasks: deque[Task] = deque(maxlen=_TASKS_KEPT)  # nobody who runs no steps fills the memory

    def next(self, start_s: float) -> "StepRecord":
        """The record of the step after this one.

        Args:
            start_s: the host's clock at its beginning.
        """
        last = {task.device: task for task in self.tasks if task.target == COMPUTE}
        return StepRecord(self.ends[:-1], start_s, {**self.last, **last})

    def timeline(self, *, by_operator: bool = False) -> Timeline:
        """The step as a timeline. All its tasks must be timed.

        Args:
            by_operator: a span for each kernel, else one for each stay in a layer.

        Returns:
            As `spans.timeline_of` says.
        """
        sent = [task for task in self.tasks if task.target != COMPUTE]
        counters = {
            "kernels": len(self.tasks) - len(sent),
            "transfers": len(sent),
            "transfer_bytes": sum([int(task.amount) for task in sent]),
        }
        ran = [self._span(task, by_operator=by_operator) for task in self.tasks]
        before_s = {self.ends[device]: task.end_s - self.start_s for device, task in self.last.items()}
        return timeline_of(ran, self.peak_bytes, counters, merge=not by_operator, before_s=before_s)

    def _span(self, task: Task, *, by_operator: bool) -> Span:
        where = self.ends[task.device]
        if task.target != COMPUTE:
            where = f"{where}>{self.ends[task.target]}"
        kind = "compute" if task.target == COMPUTE else "transfer"
        parts = (task.layer, task.what) if by_operator else (task.layer,)
        name = "/".join([part for part in parts if part])
        start_s, end_s = max(0.0, task.start_s - self.start_s), max(0.0, task.end_s - self.start_s)
        size_bytes = int(task.amount) if kind == "transfer" else 0
        return Span(kind, name, where, start_s, end_s, task.phase, size_bytes)  # type: ignore[arg-type]
