"""Steps on emulated devices of ranks: each rank emulates its own, and one process emulates all of them."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from run.ranks.models import ROWS, built

import baechi
from baechi.records.cluster import Cluster
from baechi.records.pipeline import Pipeline

_WARM_UP = 4
"""Steps before the emulation: in the first ones the batch is looked at, in one process, too."""


class Emulated(NamedTuple):
    """An emulated step.

    Args:
        spans: by device or link, kind and phase, start and end.
        peak_bytes: by device.
        loss: of the step.
        makespan_s: how long it takes.
        ends_s: by device, when the last layer's backward is over there.
    """

    spans: list[tuple[Any, ...]]
    peak_bytes: dict[str, int]
    loss: float
    makespan_s: float
    ends_s: dict[str, float]


def over_ranks(name: str, devices: int, number: int, order: str, *, apart: bool = False, **more: Any) -> str:
    """A plan for emulated devices of ranks, whose layers lie at random."""
    model, batch = built(name)
    cluster = baechi.Cluster.virtual(devices, memory="1GiB", ranks=True)
    cluster = replace(cluster, **more)
    graph = baechi.profile(
        model, batch(), cluster=cluster, source="estimate", microbatches=number, weights_apart=apart
    )
    plan = baechi.place(graph, cluster, "random:1")
    return baechi.pipeline(plan, number, order).to_json()  # type: ignore[arg-type]


def emulated(
    name: str, text: str, steps: int = 2, whole: str = "", rows: int = ROWS, replicas: int | None = None
) -> list[Emulated]:
    """Steps of training, as far as they are emulated here; `whole` has the devices of all replicas."""
    model, batch = built(name)
    pipeline = Pipeline.from_json(text)
    cluster = Cluster.from_json(whole) if whole else pipeline.plan.cluster
    data = [batch() for _ in range(steps)]
    if whole and replicas is None:
        replicas = len(cluster) // len(pipeline.plan.cluster)
    if replicas is not None and baechi.replica(replicas).own:  # each has rows of its own
        data = [{key: one[:rows] for key, one in batch().items()} for _ in range(steps)]
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    baechi.distribute(
        model,
        data[0],
        cluster=cluster,
        plan=pipeline,
        optimizer=optimizer,
        loss_weights="rows",
        coupled="accept",
        compile=baechi.Stages(backend="aot_eager"),
        replicas=replicas,
    )
    torch.manual_seed(7)

    def step(inputs: dict[str, Any]) -> torch.Tensor:
        optimizer.zero_grad()
        result = model(**inputs)
        loss: torch.Tensor = result["loss"] if isinstance(result, dict) else result
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(_WARM_UP):
        step(data[0])
    found = []
    with cluster:
        for inputs in data:
            loss = step(inputs)
            timeline = baechi.last_step(model)
            spans = [(s.where, s.kind, s.phase, s.start_s, s.end_s, s.size_bytes) for s in timeline.spans]
            peaks = dict(timeline.peak_bytes)
            found.append(Emulated(spans, peaks, loss.item(), timeline.makespan_s, ends_of(timeline)))
            del loss  # as a training loop's function does at its end
    return found


def ends_of(timeline: baechi.Timeline) -> dict[str, float]:
    """By device, when the last layer is over there."""
    found: dict[str, float] = {}
    for span in timeline.spans:
        if span.kind == "compute" and span.layer:
            found[span.where] = max(found.get(span.where, 0.0), span.end_s)
    return found


def dry(name: str, text: str) -> Emulated:
    """The second step of a dry run, in this process."""
    model, batch = built(name)
    timeline = baechi.dry_run(model, batch(), Pipeline.from_json(text), optimizer="adamw")
    spans = [(s.where, s.kind, s.phase, s.start_s, s.end_s, s.size_bytes) for s in timeline.spans]
    return Emulated(spans, dict(timeline.peak_bytes), 0.0, timeline.makespan_s, ends_of(timeline))
