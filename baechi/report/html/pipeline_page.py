"""The page of a pipeline: its step with a span for each stage and microbatch, and what was tried."""

from typing import Any

from baechi.records.pipeline import Pipeline
from baechi.records.timeline import Span, Timeline
from baechi.report.critical import Cause
from baechi.report.html.data import in_rows, with_graph
from baechi.report.html.page import Parts, paragraph, put_together
from baechi.report.pipeline.facts import PipelineFacts
from baechi.report.pipeline.text import devices, front, headline, orders
from baechi.units import format_bytes, format_seconds, format_share

_CLOSE = 1e-9
"""As a part of the step: times nearer than this count as equal."""


def pipeline_to_html(pipeline: Pipeline) -> str:
    """The report on a pipeline as a page: one text, that needs no other file and no network.

    Args:
        pipeline: any; it is simulated if it was not yet.

    Returns:
        HTML.
    """
    facts = PipelineFacts(pipeline)
    plan, model = pipeline.plan, str(pipeline.plan.graph.graph.get("model", "model"))
    _, why, change = facts.reading
    title = f"{model}: {pipeline.microbatches} microbatches, {format_seconds(facts.step_s)} a step"
    shown = [devices(facts), *([orders(facts), front(facts)] if pipeline.tried else [])]
    readings = [paragraph(why, change)]
    parts = Parts("pipeline", model, title, headline(facts), _figures(facts), readings, shown)
    names = list(plan.graph)
    timeline = in_rows("predicted", plan, facts.timeline, names, _label, _causes(facts.timeline))
    return put_together(parts, with_graph(plan, [timeline], names), len(plan.cluster))


def _label(span: Span) -> str:
    """The first layer of a task, and its microbatch, counted from 0 as everywhere."""
    return span.layer if span.microbatch is None else f"{span.layer} #{span.microbatch}"


def _figures(facts: PipelineFacts) -> list[tuple[str, str, str]]:
    pipeline, bound = facts.pipeline, facts.reading[0]
    used, all_of = len(pipeline.plan.devices_used), len(pipeline.plan.cluster)
    found = [
        ("predicted step", format_seconds(facts.step_s), facts.timeline.source),
        ("microbatches", str(pipeline.microbatches), f"order {pipeline.rule}"),
        ("stages", str(len(pipeline.stages)), f"on {used} of {all_of} devices"),
        ("bubble", format_share(facts.bubble, 1), "of the used devices' time"),
        ("host", format_share(facts.host_share, 1), "of the step"),
    ]
    if facts.devices:
        fullest = max(facts.devices, key=lambda device: device.peak_bytes / max(1, device.limit_bytes))
        share = format_share(fullest.peak_bytes, fullest.limit_bytes)
        sizes = f"{format_bytes(fullest.peak_bytes)} of {format_bytes(fullest.limit_bytes)}"
        found.append((f"fullest, {fullest.name}", share, sizes))
    return [*found, ("bound by", bound, "")]


def _causes(timeline: Timeline) -> dict[int, tuple[Cause, Span | None]]:
    """What each span waited for: of its microbatch, what ended last where it reads."""
    close_s = _CLOSE * timeline.makespan_s
    ended: dict[tuple[int | None, str], list[Span]] = {}
    for span in sorted(timeline.spans, key=lambda span: span.end_s):
        ended.setdefault((span.microbatch, span.where.rpartition(">")[2]), []).append(span)
    found: dict[int, tuple[Cause, Span | None]] = {}
    for span in timeline.spans:
        source = span.where.partition(">")[0]
        there: list[Any] = ended.get((span.microbatch, source), [])
        before = [one for one in there if one is not span and one.end_s <= span.start_s + close_s]
        found[id(span)] = ("data", before[-1]) if before else ("start", None)
    return found
