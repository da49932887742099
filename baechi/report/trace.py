"""Timelines as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

    process   a device, or the host
    thread    a stream of it: `compute`, `tx to X` for what it sends, `rx from X` for what it receives
    slice     a layer on `compute`; a transfer on the `tx` of its source and on the `rx` of its target,
              with an arrow from one to the other
    counter   `memory`, where the timeline knows it

The names are those of layers and devices, so they are the same in a predicted and a measured trace.
Form: "Trace Event Format" of the Chromium project, the JSON object form. Its times are microseconds;
they are rounded to whole nanoseconds, ends as well as starts, so that neighbours never overlap.
"""

import json
from collections.abc import Iterator
from typing import Any

from baechi.records.cluster import HOST
from baechi.records.timeline import Span, Timeline

AROUND = "(around the model)"
"""The name of work that belongs to no layer."""

_Event = dict[str, Any]
_THREADS = 1000  # numbers of threads of one process


def to_trace(timeline: Timeline, measured: Timeline | None = None) -> str:
    """Timelines as the text of a trace file."""
    if measured is None:
        events = list(_Trace(timeline, "", 1).events())
    else:
        events = list(_Trace(timeline, "predicted ", 1).events())
        events += _Trace(measured, "measured ", 1 + len(_ends(timeline))).events()
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, allow_nan=False) + "\n"


def _ends(timeline: Timeline) -> list[str]:
    """The devices, then the host, then what else spans and memory name."""
    named = [end for span in timeline.spans for end in span.where.split(">")]
    return list(dict.fromkeys([*timeline.peak_bytes, HOST, *named, *timeline.live_bytes]))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


class _Trace:
    """The events of one timeline.

    Args:
        timeline: predicted or measured.
        prefix: before the names of processes.
        first: number of the first process; every thread and arrow has a number of its own as well.
    """

    def __init__(self, timeline: Timeline, prefix: str, first: int) -> None:
        self._timeline = timeline
        self._prefix = prefix
        self._pid = {end: first + place for place, end in enumerate(_ends(timeline))}
        self._tid: dict[tuple[str, str], int] = {}
        for end in self._pid:
            self._thread(end, "compute")
        for span in timeline.spans:
            for end, stream in _streams(span):
                self._thread(end, stream)

    def events(self) -> Iterator[_Event]:
        """All events: names first."""
        yield from self._names()
        for number, span in enumerate(self._timeline.spans):
            yield from self._slices(span)
            if ">" in span.where:
                yield from self._arrow(span, number)
        for device, steps in self._timeline.live_bytes.items():
            for time_s, size in steps:
                where = {"pid": self._pid[device], "ts": _us(_ns(time_s))}
                yield {"ph": "C", "name": "memory", **where, "args": {"bytes": size}}

    def _thread(self, end: str, stream: str) -> None:
        if (end, stream) not in self._tid:
            streams = sum(1 for known, _ in self._tid if known == end)
            self._tid[end, stream] = self._pid[end] * _THREADS + streams

    def _names(self) -> Iterator[_Event]:
        for end, pid in self._pid.items():
            yield _meta("process_name", {"name": self._prefix + end}, pid=pid)
            yield _meta("process_sort_index", {"sort_index": pid}, pid=pid)
        for (end, stream), tid in self._tid.items():
            yield _meta("thread_name", {"name": stream}, pid=self._pid[end], tid=tid)
            yield _meta("thread_sort_index", {"sort_index": tid}, pid=self._pid[end], tid=tid)

    def _slices(self, span: Span) -> Iterator[_Event]:
        start, end = _ns(span.start_s), _ns(span.end_s)
        args: dict[str, Any] = {"phase": span.phase}
        if span.microbatch is not None:
            args["microbatch"] = span.microbatch
        if span.kind == "transfer":
            args |= {"bytes": span.size_bytes, "link": span.where}
        for where, stream in _streams(span):
            yield {
                "ph": "X",
                "name": span.layer or AROUND,
                "cat": f"{span.kind},{span.phase}",
                "pid": self._pid[where],
                "tid": self._tid[where, stream],
                "ts": _us(start),
                "dur": _us(end - start),
                "args": args,
            }

    def _arrow(self, span: Span, number: int) -> Iterator[_Event]:
        common = {"name": "transfer", "cat": "transfer", "ts": _us(_ns(span.start_s))}
        for (where, stream), ends in zip(_streams(span), ({"ph": "s"}, {"ph": "f", "bp": "e"}), strict=True):
            place = {"pid": self._pid[where], "tid": self._tid[where, stream]}
            yield {**ends, "id": self._pid[HOST] * 10**6 + number, **common, **place}


def _streams(span: Span) -> list[tuple[str, str]]:
    """The streams that a span takes: of which device, and which."""
    source, travels, target = span.where.partition(">")
    if not travels:
        return [(source, "compute")]
    return [(source, f"tx to {target}"), (target, f"rx from {source}")]


def _meta(name: str, args: dict[str, Any], **where: int) -> _Event:
    return {"ph": "M", "name": name, **where, "args": args}
