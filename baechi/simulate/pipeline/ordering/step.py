"""Predict the step of a pipeline, and order one: what users call, in records."""

from collections.abc import Mapping, Sequence
from typing import Literal

from baechi.order.pipeline import TEXTBOOK, Textbook
from baechi.records.cluster import HOST
from baechi.records.pipeline import OrderTried, Pipeline, Task, tasks_of, units_of
from baechi.records.pipeline.dependencies import in_flight
from baechi.records.pipeline.merge import merged
from baechi.records.pipeline.pipeline import KeptSplit
from baechi.records.plan import Plan
from baechi.records.timeline import Span, Timeline
from baechi.simulate.pipeline.coster import PipelineCoster
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.memory import memory_of
from baechi.simulate.pipeline.ordering.choose import Tried, all_tried, best_of, textbook
from baechi.simulate.pipeline.ordering.improve import improved
from baechi.simulate.pipeline.replay import Replay

OrderLike = Literal["auto"] | Textbook | Sequence[Task] | Mapping[str, Sequence[Task]]
"""An order by name; one list for the host; or a list for each device, by name."""


def costs_of(plan: Plan) -> PipelineCosts:
    """What the runs and stages of a plan take."""
    coster = PipelineCoster(plan.graph, plan.cluster)
    devices = {name: index for index, name in enumerate(plan.cluster.names)}
    return coster([devices[plan.device_of[name]] for name in coster.placeable.names])


def check_order(order: OrderLike) -> None:
    """Raise if it is no order, or none has this name."""
    known = ", ".join(repr(name) for name in ("auto", *TEXTBOOK))
    if isinstance(order, str) and order not in ("auto", *TEXTBOOK):
        raise ValueError(f"there is no order {order!r}: there are {known}, or pass a list of tasks")
    if not isinstance(order, (str, Sequence, Mapping)):
        raise ValueError(f"order is {order!r}: it takes {known}, or tasks in their order")


def ordered(
    plan: Plan,
    microbatches: int,
    order: OrderLike = "auto",
    *,
    limits: Mapping[str, int] | None = None,
    split: Mapping[str, KeptSplit] | None = None,
) -> Pipeline:
    """Order the tasks of a plan's microbatches."""
    kept, rules = dict(limits or {}), dict(split or {})
    if isinstance(order, Mapping) or not isinstance(order, str):
        return Pipeline(plan, microbatches, _by_hand(plan, microbatches, order), "hand", kept, rules)
    costs = costs_of(plan)
    if order == "auto":
        most = [kept.get(name, microbatches) for name in plan.cluster.names]
        found = all_tried(costs, microbatches, most)
        allowed = [tried for tried in found if _keeps(plan, tried, kept)] or found
        better = improved(costs, microbatches, allowed, most)
        keeping = [tried for tried in better if _keeps(plan, tried, kept)]
        return pipeline_of(plan, microbatches, best_of(allowed + keeping), found + better, kept, rules)
    check_order(order)
    return pipeline_of(plan, microbatches, textbook(costs, microbatches, order), (), kept, rules)


def pipeline_of(
    plan: Plan,
    microbatches: int,
    chosen: Tried,
    found: Sequence[Tried],
    limits: Mapping[str, int] | None = None,
    split: Mapping[str, KeptSplit] | None = None,
) -> Pipeline:
    """A pipeline from an order that was tried."""
    tried = tuple([recorded(one, plan.cluster.names) for one in found])
    return Pipeline(plan, microbatches, chosen.order, chosen.rule, limits or {}, split or {}, tried)


def recorded(tried: Tried, names: Sequence[str]) -> OrderTried:
    """What is kept of an order that was tried."""
    return OrderTried(
        tried.rule,
        tried.step_s,
        dict(zip(names, tried.peak_bytes, strict=True)),
        dict(zip(names, tried.limits, strict=True)) if tried.limits else {},
        tried.fits,
    )


def simulate_pipeline(pipeline: Pipeline) -> Timeline:
    """Predict the step of a pipeline."""
    if pipeline.microbatches == 1:
        return pipeline.plan.timeline
    costs = costs_of(pipeline.plan)
    replay = Replay(costs, pipeline.microbatches, pipeline.order)
    memory = memory_of(costs, pipeline.order, replay)
    names = pipeline.plan.cluster.names
    ends = (*names, HOST)
    lead_s = costs.lead_s
    issue_s = [max(0.0, time_s - lead_s) for time_s in replay.issue_s or [0.0]]  # of a graph without layers
    spans = []
    for task in pipeline.order:
        job = replay.jobs[task]
        where = names[pipeline.units.device(task)]
        when = job.start_s - lead_s, job.end_s - lead_s
        spans.append(
            Span("compute", _first_layer(pipeline, task), where, *when, task.phase, 0, task.microbatch)
        )
    for job, send, task in replay.sent:
        link = f"{ends[send.source]}>{ends[send.target]}"
        when = job.start_s - lead_s, job.end_s - lead_s
        spans.append(
            Span(
                "transfer",
                _first_layer(pipeline, task),
                link,
                *when,
                task.phase,
                send.size_bytes,
                task.microbatch,
            )
        )
    return Timeline(
        spans=tuple(sorted(spans, key=lambda span: span.start_s)),
        makespan_s=replay.makespan_s,
        peak_bytes=dict(zip(names, memory.peak_bytes, strict=True)),
        counters={
            "transfers": len(replay.sent),
            "transfer_bytes": sum([send.size_bytes for _, send, _ in replay.sent]),
            "host_us": round(1e6 * replay.host_s),
        },
        live_bytes={
            name: tuple([(issue_s[position], live) for position, live in curve])
            for name, curve in zip(names, memory.curve, strict=True)
        },
    )


def _first_layer(pipeline: Pipeline, task: Task) -> str:
    units = pipeline.runs if task.phase == "forward" else pipeline.stages
    return units[task.unit].layers[0]


def _by_hand(
    plan: Plan, microbatches: int, order: Sequence[Task] | Mapping[str, Sequence[Task]]
) -> tuple[Task, ...]:
    if not isinstance(order, Mapping):
        return tasks_of(order)
    names = plan.cluster.names
    unknown = [name for name in order if name not in names]
    if unknown:
        raise ValueError(f"the order names {', '.join(unknown)}: the devices are {', '.join(names)}")
    lines = [tasks_of(order.get(name, ())) for name in names]
    return merged(units_of(plan), names, microbatches, lines)


def _keeps(plan: Plan, tried: Tried, limits: Mapping[str, int]) -> bool:
    if not limits:
        return True
    live = dict(
        zip(plan.cluster.names, in_flight(units_of(plan), len(plan.cluster), tried.order), strict=True)
    )
    return all([live[name] <= limit for name, limit in limits.items() if name in live])
