"""A pipeline beside the plan without microbatches: steps, what bounds each, how full devices get."""

from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report.fewer_devices import short_bytes
from baechi.report.pipeline.facts import PipelineFacts
from baechi.report.reading import read
from baechi.report.tables import Table
from baechi.units import format_bytes, format_seconds, format_share

_BOUNDS = {
    "nothing": "nothing",
    "host": "the host",
    "link": "a link",
    "transfer": "transfers",
    "work": "work",
    "balance": "uneven work",
    "memory": "memory",
    "bubble": "filling and draining",
    "waiting": "transfers on the way",
    "serial": "one layer after the other",
}
"""What bounds a step, in words."""


def against_unsplit(facts: PipelineFacts) -> list[Table]:
    """The pipeline and the plan without microbatches in two columns, and what they are good for."""
    pipeline, plan = facts.pipeline, facts.pipeline.unsplit
    told = verdict(facts)
    if plan is None:
        return [Table("What the microbatches gain", (), (), (), told)] if told else []
    other, bound = plan.timeline, read(plan, plan.timeline)
    gain = f" ({other.makespan_s / facts.step_s:.2f} ×)" if facts.step_s else ""
    rows = [
        ("step", f"{format_seconds(facts.step_s)}{gain}", format_seconds(other.makespan_s)),
        ("bound by", _BOUNDS[facts.reading[0]], _BOUNDS[bound.bound]),
        ("devices that compute", _computing(pipeline.plan, facts.timeline), _computing(plan, other)),
    ]
    rows += [
        (f"peak of {name}", _peak(pipeline.plan, facts.timeline, name), _peak(plan, other, name))
        for name in plan.cluster.names
    ]
    columns = ("", f"in {pipeline.microbatches} microbatches", f"without, by {plan.placer}")
    short = [f"{name} is short of {format_bytes(size)}" for name, size in short_bytes(plan).items()]
    lacks = f" The plan does not fit: {', '.join(short)}." if short else ""
    high = " Simulated peaks are upper bounds." if facts.timeline.source == "simulated" else ""
    told = f" {told}" if told else ""
    note = f"Without microbatches, {bound.why[0].lower()}{bound.why[1:]}{lacks}{high}{told}"
    return [Table("Beside the plan without microbatches", columns, tuple(rows), ("",), note)]


def verdict(facts: PipelineFacts) -> str:
    """Where the microbatches gain no time: that, why, and what to do; empty where they gain."""
    pipeline, plan = facts.pipeline, facts.pipeline.unsplit
    number = pipeline.microbatches
    if number == 1:
        return ""
    fits = plan is not None and not short_bytes(plan)
    slower = fits and plan is not None and facts.step_s > plan.timeline.makespan_s
    alone = len(pipeline.devices_used) == 1
    if not slower and not alone:
        return ""
    gain = "is slower than none" if slower else "saves memory, no time"
    if alone:
        why = f"all layers lie on {pipeline.devices_used[0]}, where they run one after the other"
        if facts.reading[0] == "host":
            why += ", and the host, which issues each microbatch's kernels, is busy all the time"
    else:
        why = facts.reading[1][0].lower() + facts.reading[1][1:].rstrip(".")
    cure = "; leave microbatches out, or say microbatches='auto'" if fits else ""
    return f"microbatches={number} {gain}: {why}{cure}."


def _computing(plan: Plan, timeline: Timeline) -> str:
    """How many devices compute, on average."""
    busy_s = sum([timeline.busy_s(name) for name in plan.cluster.names])
    return f"{busy_s / timeline.makespan_s:.1f} of {len(plan.cluster)}" if busy_s else "-"


def _peak(plan: Plan, timeline: Timeline, name: str) -> str:
    peak_bytes, limit_bytes = timeline.peak_bytes.get(name, 0), plan.cluster.device(name).memory_bytes
    return f"{format_bytes(peak_bytes)} ({format_share(peak_bytes, limit_bytes)})"
