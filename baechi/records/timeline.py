"""When what ran where: predicted by `simulate`, measured by a run; one record for both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from baechi.errors import RecordError
from baechi.records.abstract import AbstractRecord
from baechi.records.schema import DeviceName, TotalBytes, TotalSeconds, few_of, some_of

SpanKind = Literal["compute", "transfer", "wait"]
Phase = Literal["forward", "backward", "other"]
SUM = "sum of gradients"
"""What a transfer is called, in place of a layer, that adds up gradients of replicas."""

Source = Literal["simulated", "dry run", "measured"]


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
        size_bytes: what travelled, of a transfer.
        microbatch: for which microbatch of a pipelined step, counted from 0; None in a step without them.
    """

    in_rows: ClassVar[bool] = True

    kind: SpanKind
    layer: str
    where: str
    start_s: TotalSeconds
    end_s: TotalSeconds
    phase: Phase = "forward"
    size_bytes: TotalBytes = 0
    microbatch: int | None = None


@dataclass(frozen=True, repr=False)
class Timeline(AbstractRecord):
    """The spans of one step, what they add up to, and how full each device got.

    Args:
        spans: what ran, in order of start.
        makespan_s: forward window plus backward window, uploads and downloads included.
        peak_bytes: by device, over the whole step, optimizer state included.
        counters: such as `{"transfers": 12, "transfer_bytes": 4096}`.
        live_bytes: by device, pairs of seconds and of the bytes that it held from then on; empty
            where they were not recorded.
        reserved_bytes: by device, what torch's caching allocator for CUDA would reserve for all this; empty
            where that was not worked out.
        source: `"simulated"` from a graph; `"dry run"`, by a run without values; `"measured"`.

    Raises:
        RecordError: a span ends before it starts, or a figure is negative.
    """

    record_kind: ClassVar[str] = "timeline"
    later: ClassVar[tuple[str, ...]] = ("live_bytes", "source", "reserved_bytes")

    spans: tuple[Span, ...]
    makespan_s: TotalSeconds
    peak_bytes: Mapping[DeviceName, TotalBytes]
    counters: Mapping[str, int] = field(default_factory=dict)
    live_bytes: Mapping[DeviceName, tuple[tuple[TotalSeconds, TotalBytes], ...]] = field(default_factory=dict)
    source: Source = "simulated"
    reserved_bytes: Mapping[DeviceName, TotalBytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = [
            f"{span.kind} of {span.layer} on {span.where} runs from {span.start_s} to {span.end_s}"
            for span in self.spans
            if not 0 <= span.start_s <= span.end_s
        ]
        faults += [
            f"{span.kind} of {span.layer} is on {span.where!r}, no device or, for a transfer, 'source>target'"
            for span in self.spans
            if not all(ends := span.where.split(">")) or len(ends) != 1 + (span.kind == "transfer")
        ]
        faults += [f"peak of {name} is {peak} bytes" for name, peak in self.peak_bytes.items() if peak < 0]
        faults += [
            f"{name} holds {size} bytes at {time_s} s"
            for name, steps in self.live_bytes.items()
            for time_s, size in steps
            if not (time_s >= 0 and size >= 0)
        ]
        if not self.makespan_s >= 0:
            faults.append(f"makespan_s is {self.makespan_s}")
        if faults:
            raise RecordError("timeline is malformed:", tuple(faults))

    def strangers(self, names: Sequence[str]) -> list[str]:
        """Where it speaks of devices that a cluster does not have, one sentence each.

        Args:
            names: the cluster's devices.
        """
        known = {*names, "host"}
        named = {end for span in self.spans for end in span.where.split(">")}
        named.update(self.peak_bytes, self.live_bytes, self.reserved_bytes)
        there = few_of(names)
        return some_of(
            f"its timeline names {end!r}: the devices are {there}" for end in sorted(named - known)
        )

    @property
    def mode(self) -> Literal["training", "inference"]:
        """Which kind of step it is: one of training has a backward."""
        backward = any([span.phase == "backward" for span in self.spans])
        return "training" if backward else "inference"

    @property
    def sums_s(self) -> tuple[float, float]:
        """Seconds in which gradients of replicas are added up, and how many of them while layers still run.

        It is told of all devices that the timeline has: over ranks each process measures its own only.
        """
        sums = [span for span in self.spans if span.layer == SUM and span.kind == "transfer"]
        ran_s = [span.end_s for span in self.spans if span.kind == "compute" and span.layer]
        last_s = max(ran_s, default=0.0)
        hidden_s = sum([max(0.0, min(span.end_s, last_s) - span.start_s) for span in sums])
        return sum([span.end_s - span.start_s for span in sums]), hidden_s

    def busy_s(self, where: str, kind: SpanKind = "compute") -> float:
        """Seconds that a device computed, or a link transferred; work around the model does not count.

        No more than the step takes: what ran while another device still worked for the step before, is not
        part of the step.

        Args:
            where: a device's name, or a link written `"source>target"`.
            kind: which spans to add up.

        Returns:
            Seconds.
        """
        own = [span for span in self.spans if span.where == where and span.kind == kind]
        return min(self.makespan_s, sum([span.end_s - span.start_s for span in own if span.phase != "other"]))
