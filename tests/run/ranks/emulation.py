"""Steps on emulated devices of ranks: each rank emulates its own, and one process emulates all of them."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from run.ranks.models import built

import baechi
from baechi.records.pipeline import Pipeline

_WARM_UP = 4
"""Steps before the emulation: in the first ones the batch is looked at, in one process, too."""


class Emulated(NamedTuple):
    """An emulated step.

    Args:
        spans: by device or link, kind and phase, start and end.
        peak_bytes: by device.
        loss: of the step.
    """

    spans: list[tuple[Any, ...]]
    peak_bytes: dict[str, int]
    loss: float


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


def emulated(name: str, text: str, steps: int = 2) -> list[Emulated]:
    """Steps of training, as far as they are emulated here."""
    model, batch = built(name)
    pipeline = Pipeline.from_json(text)
    cluster, data = pipeline.plan.cluster, [batch() for _ in range(steps)]
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
            found.append(Emulated(spans, dict(timeline.peak_bytes), loss.item()))
            del loss  # as a training loop's function does at its end
    return found


def dry(name: str, text: str) -> Emulated:
    """The second step of a dry run, in this process."""
    model, batch = built(name)
    timeline = baechi.dry_run(model, batch(), Pipeline.from_json(text), optimizer="adamw")
    spans = [(s.where, s.kind, s.phase, s.start_s, s.end_s, s.size_bytes) for s in timeline.spans]
    return Emulated(spans, dict(timeline.peak_bytes), 0.0)
