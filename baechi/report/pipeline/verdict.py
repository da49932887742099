"""A pipeline in one sentence of figures: what it gains, how near the bound it is, what the limit is.

The bound is a time that no order of its tasks can beat, on these devices and with these stages.
"""

from baechi.records.lazy_imports import lazy_import
from baechi.records.pipeline import Pipeline
from baechi.report.pipeline.facts import Bound, PipelineFacts
from baechi.report.verdict import does_not_fit, gain, of_the_bound

_LIMITS: dict[Bound, str] = {
    "nothing": "nothing",
    "host": "the host",
    "link": "a link",
    "work": "the work of all devices",
    "balance": "uneven work",
    "memory": "memory",
    "bubble": "filling and draining",
    "waiting": "transfers on the way",
}


def pipeline_verdict(facts: PipelineFacts) -> str:
    """One sentence on a pipeline."""
    pipeline, step_s = facts.pipeline, facts.step_s
    if not step_s:
        return "Nothing takes time in this step."
    short = {d.name: d.peak_bytes - d.limit_bytes for d in facts.devices if d.peak_bytes > d.limit_bytes}
    parts = [*does_not_fit(short), gain(pipeline.plan, facts.one_device, step_s)]
    if pipeline.unsplit is not None:
        unsplit_s = pipeline.unsplit.timeline.makespan_s
        parts.append(f"{unsplit_s / step_s:.2f} times as fast as without microbatches")
    sentence = ", ".join([*parts, *of_the_bound(bound_s(pipeline), step_s)])
    return f"{sentence[0].upper()}{sentence[1:]}; {_LIMITS[facts.reading[0]]} {_is(facts)} the limit."


def bound_s(pipeline: Pipeline) -> float:
    """A time that no order of a pipeline's tasks can beat."""
    plan, number = pipeline.plan, pipeline.microbatches
    if number == 1:
        return float(lazy_import("shortest_step_s")(plan.graph, plan.cluster))
    return float(lazy_import("shortest_pipeline_s")(lazy_import("costs_of")(plan), number))


def _is(facts: PipelineFacts) -> str:
    return "are" if facts.reading[0] == "waiting" else "is"
