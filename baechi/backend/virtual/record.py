"""What was measured of a step: every kernel and transfer, merged into a timeline when asked."""

from collections import deque
from collections.abc import Mapping, Sequence

from baechi.backend.virtual.clock import COMPUTE, Task
from baechi.records.cluster import HOST
from baechi.records.timeline import Span, Timeline

_TASKS_KEPT = 500_000


class StepRecord:
    """The tasks of one step: from a call of a model to the next.

    Args:
        names: the devices' names.
        start_s: the host's clock at its beginning.
    """

    def __init__(self, names: Sequence[str], start_s: float) -> None:
        self.ends = (*names, HOST)
        self.start_s = start_s
        self.peak_bytes: Mapping[str, int] = {}
        self.tasks: deque[Task] = deque(maxlen=_TASKS_KEPT)  # nobody who runs no steps fills the memory

    def timeline(self, *, by_operator: bool = False) -> Timeline:
        """The step as a timeline. All its tasks must be timed.

        Args:
            by_operator: a span for each kernel, else one for each stay in a layer.

        Returns:
            Spans in order of start. `makespan_s` is the forward window plus the backward window;
            work around the model has phase `"other"` and no part in it.
        """
        spans: list[Span] = []
        last: dict[str, int] = {}
        for task in sorted(self.tasks, key=lambda task: task.start_s):
            span = self._span(task, by_operator=by_operator)
            place = last.get(span.where)
            before = spans[place] if place is not None else None
            if not by_operator and before is not None and place is not None and _goes_on(before, span):
                spans[place] = Span(span.kind, span.layer, span.where, before.start_s, span.end_s, span.phase)
            else:
                last[span.where] = len(spans)
                spans.append(span)
        sent = [task for task in self.tasks if task.target != COMPUTE]
        return Timeline(
            spans=tuple(spans),
            makespan_s=_window_s(spans, "forward") + _window_s(spans, "backward"),
            peak_bytes=dict(self.peak_bytes),
            counters={
                "kernels": len(self.tasks) - len(sent),
                "transfers": len(sent),
                "transfer_bytes": sum([int(task.amount) for task in sent]),
            },
        )

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


def _goes_on(before: Span, span: Span) -> bool:
    same = before.layer == span.layer and before.phase == span.phase
    return same and before.kind == span.kind == "compute"


def _window_s(spans: list[Span], phase: str) -> float:
    own = [span for span in spans if span.phase == phase]
    return max(span.end_s for span in own) - min(span.start_s for span in own) if own else 0.0
