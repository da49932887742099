"""When what ran where: predicted by `simulate`, measured by a run; one record for both."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from baechi.errors import RecordError
from baechi.records import files

SpanKind = Literal["compute", "transfer", "wait"]
Phase = Literal["forward", "backward", "other"]


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that ran.

    Args:
        kind: `"compute"`, `"transfer"` or `"wait"`.
        layer: the layer that ran, or whose output travelled.
        where: a device, or a link written `"source>target"`.
        start_s: seconds since the step began.
        end_s: seconds since the step began.
        phase: `"forward"`, `"backward"`, or `"other"` (loss, optimizer).
    """

    kind: SpanKind
    layer: str
    where: str
    start_s: float
    end_s: float
    phase: Phase = "forward"


@dataclass(frozen=True)
class Timeline:
    """The spans of one step, what they add up to, and how full each device got.

    Args:
        spans: what ran, in order of start.
        makespan_s: forward window plus backward window, uploads and downloads included.
        peak_bytes: by device, over the whole step, optimizer state included.
        counters: such as `{"transfers": 12, "transfer_bytes": 4096}`.

    Raises:
        RecordError: a span ends before it starts, or a figure is negative.
    """

    spans: tuple[Span, ...]
    makespan_s: float
    peak_bytes: Mapping[str, int]
    counters: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = [
            f"{span.kind} of {span.layer} on {span.where} runs from {span.start_s} to {span.end_s}"
            for span in self.spans
            if not 0 <= span.start_s <= span.end_s
        ]
        faults += [f"peak of {name} is {peak} bytes" for name, peak in self.peak_bytes.items() if peak < 0]
        if not self.makespan_s >= 0:
            faults.append(f"makespan_s is {self.makespan_s}")
        if faults:
            raise RecordError("timeline is malformed:", tuple(faults))

    def busy_s(self, where: str, kind: SpanKind = "compute") -> float:
        """Seconds that a device computed, or a link transferred.

        Args:
            where: a device's name, or a link written `"source>target"`.
            kind: which spans to add up.

        Returns:
            Seconds.
        """
        return sum(s.end_s - s.start_s for s in self.spans if s.where == where and s.kind == kind)

    def to_json(self) -> str:
        """The timeline as JSON text."""
        return files.pack("timeline", self._body())

    @classmethod
    def from_json(cls, text: str) -> "Timeline":
        """Read what `to_json` wrote.

        Args:
            text: JSON text.

        Raises:
            RecordError: the text holds no timeline.
        """
        body = files.unpack("timeline", text)
        spans = tuple(Span(*span) for span in body["spans"])
        return cls(spans, body["makespan_s"], body["peak_bytes"], body["counters"])

    def save(self, path: str | Path) -> None:
        """Write the timeline to a file."""
        files.write("timeline", self._body(), path)

    def _body(self) -> dict[str, Any]:
        return {
            "makespan_s": self.makespan_s,
            "peak_bytes": dict(self.peak_bytes),
            "counters": dict(self.counters),
            "spans": [list(asdict(span).values()) for span in self.spans],
        }
