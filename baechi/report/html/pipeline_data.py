"""What the pictures of a pipeline's page show: the step by device, and the same step by microbatch."""

from collections.abc import Sequence
from typing import Any

from baechi.records.pipeline import Pipeline
from baechi.records.timeline import Span
from baechi.report.html.data import PHASES, numbered_rows, us

_NOTHING_KNOWN = -1
_DATA, _QUEUE = 1, 2
"""Causes, as `data.CAUSES` numbers them."""


def pipeline_data(pipeline: Pipeline) -> dict[str, Any]:
    """The data of all pictures of a page."""
    timeline, cluster = pipeline.timeline, pipeline.plan.cluster
    spans = list(timeline.spans)
    names = list(dict.fromkeys([span.layer for span in spans]))
    rows, row_of = numbered_rows(pipeline.plan, timeline)
    waits = _waits(spans)
    by_device = {
        "name": "by device, in the colours of microbatches",
        "step": us(timeline.makespan_s),
        "end": us(max([span.end_s for span in spans], default=0.0)),
        "rows": rows,
        "spans": [_span(span, names, row_of[number], waits, number) for number, span in enumerate(spans)],
        "peaks": [timeline.peak_bytes.get(name, 0) for name in cluster.names],
        "live": [
            [[us(time_s), size] for time_s, size in timeline.live_bytes.get(name, ())]
            for name in cluster.names
        ],
    }
    return {
        "devices": [{"name": d.name, "kind": d.kind, "limit": d.memory_bytes} for d in cluster.devices],
        "timelines": [by_device],
        "lanes": [_by_microbatch(pipeline, spans, names, waits)],
        "nodes": [],
        "names": names,
    }


def _by_microbatch(
    pipeline: Pipeline, spans: Sequence[Span], names: list[str], waits: list[int]
) -> dict[str, Any]:
    """A row for each microbatch; what computes has the colour of its device."""
    devices = {name: number for number, name in enumerate(pipeline.plan.cluster.names)}
    shown = [number for number, span in enumerate(spans) if span.kind == "compute"]
    place = {number: index for index, number in enumerate(shown)}
    drawn = []
    for number in shown:
        span = spans[number]
        row = _span(span, names, span.microbatch or 0, waits, number)
        before = place.get(waits[number], _NOTHING_KNOWN)
        drawn.append([*row[:9], before, f"d{devices[span.where]}", span.where])
    rows = [
        {"device": number, "name": f"microbatch {number}", "what": ""}
        for number in range(pipeline.microbatches)
    ]
    return {
        "name": "by microbatch, in the colours of devices",
        "step": us(pipeline.timeline.makespan_s),
        "rows": rows,
        "spans": drawn,
    }


def _span(span: Span, names: list[str], row: int, waits: list[int], number: int) -> list[Any]:
    """A span as the timeline's script reads it, with its microbatch's colour and number."""
    cause = _DATA if waits[number] != _NOTHING_KNOWN else _QUEUE
    microbatch = "" if span.microbatch is None else str(span.microbatch)
    return [
        row,
        names.index(span.layer),
        us(span.start_s),
        us(span.end_s),
        PHASES.index(span.phase),
        span.size_bytes,
        0,
        span.where if span.kind == "transfer" else "",
        cause,
        waits[number],
        f"m{microbatch}" if microbatch else "",
        microbatch,
    ]


def _waits(spans: Sequence[Span]) -> list[int]:
    """By span, the last of its microbatch that ended on its device, or arrived there, before it began."""
    found, last = [_NOTHING_KNOWN] * len(spans), dict[tuple[int | None, str], int]()
    ends = [(span.end_s, 0, number) for number, span in enumerate(spans)]
    starts = [(span.start_s, 1, number) for number, span in enumerate(spans)]
    for _, begins, number in sorted(ends + starts):
        span = spans[number]
        if begins:
            found[number] = last.get((span.microbatch, span.where.partition(">")[0]), _NOTHING_KNOWN)
        else:
            last[span.microbatch, span.where.rpartition(">")[2]] = number
    return found
