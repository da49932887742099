"""A slow CPU beside a fast card, both emulated: what is placed there, that it overlaps, the numbers."""

from dataclasses import replace

import pytest
import torch
from same import assert_same, step
from torch import nn

import baechi
from baechi import Cluster, Device, Link, PlacementError
from baechi.records.cluster import HOST
from baechi.records.datasheet import datasheet
from baechi.records.timeline import Span

CARD, CPU = "cpu:0", "cpu:1"


def cluster(card_bytes: int = 2**30) -> Cluster:
    """A card of 20 TFLOP/s, a CPU of half of one with more memory, PCIe between them."""
    sheets = [datasheet("A100-80GB") | {"memory_bytes": card_bytes}, datasheet("CPU")]
    devices = [Device(n, k, **s) for n, k, s in zip((CARD, CPU), ("A100-80GB", "CPU"), sheets, strict=True)]
    fast = {(HOST, CARD): Link(5e-6, 300e9)}  # so that the card does not wait for its inputs
    return Cluster(tuple(devices), links=fast, link=Link(10e-6, 16e9), emulated=True)


class Branches(nn.Module):
    """Much work on the left, little on the right, whose weights are large: a look-up."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(*[nn.Linear(256, 256) for _ in range(12)])
        self.table, self.head = nn.Embedding(200_000, 64), nn.Linear(320, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.cat([self.left(x), self.table(ids)], dim=1))
        return out


def inputs() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {"x": torch.randn(2048, 256), "ids": torch.randint(0, 200_000, (2048,))}


def built() -> Branches:
    torch.manual_seed(0)
    return Branches()


def overlap_s(spans: tuple[Span, ...], phase: str) -> float:
    """How long both devices compute at the same time."""
    mine, others = (
        [s for s in spans if s.where == where and s.kind == "compute" and s.phase == phase]
        for where in (CARD, CPU)
    )
    pairs = [min(a.end_s, b.end_s) - max(a.start_s, b.start_s) for a in mine for b in others]
    return sum(max(0.0, both_s) for both_s in pairs)


@pytest.mark.parametrize("placer", ["auto", "m-etf", "m-sct", "m-topo"])
def test_what_does_not_fit_the_card_lies_on_the_cpu(placer: str) -> None:
    """The large table with next to no work goes to the CPU, the work to the card; the step is predicted
    by each device's own rates, and the numbers are those of one device."""
    reference = step(built(), inputs(), training=True)
    model = built()
    beside = cluster(card_bytes=48 * 2**20)
    with pytest.raises(PlacementError):
        baechi.distribute(
            built(), inputs(), cluster=replace(beside, devices=beside.devices[:1]), training=True
        )
    baechi.distribute(model, inputs(), cluster=beside, placer=placer, training=True)
    plan = baechi.plan_of(model)
    assert plan.device_of["table"] == CPU
    if placer != "m-topo":  # which spreads memory, whatever the speed
        assert [plan.device_of[f"left.{index}"] for index in range(12)] == [CARD] * 12
    with beside:
        result, timeline = step(model, inputs(), training=True), baechi.last_step(model)
    assert_same(reference, result, tolerance=2e-5)
    assert timeline.peak_bytes[CARD] <= 48 * 2**20
    assert timeline.makespan_s == pytest.approx(plan.timeline.makespan_s, rel=0.25)


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_the_cpu_works_beside_the_card(reorder: str | bool) -> None:
    """A layer on the CPU runs while the card does, forward and backward; nothing waits for it but who
    reads it."""
    reference = step(built(), inputs(), training=True)
    model, beside = built(), cluster()
    graph = baechi.profile(model, inputs(), cluster=beside, training=True)
    chosen = {node: CPU if node == "table" else CARD for node in graph.placed()}
    plan = baechi.Plan(graph, beside, chosen, [*graph.placed()])
    baechi.assign(model, plan, reorder=reorder)
    with beside:
        result, spans = step(model, inputs(), training=True), baechi.last_step(model).spans
    assert_same(reference, result, tolerance=2e-5)
    for phase in ("forward", "backward"):
        own = [s for s in spans if s.kind == "compute" and s.phase == phase]
        busy_s = [sum(s.end_s - s.start_s for s in own if s.where == where) for where in (CARD, CPU)]
        assert overlap_s(spans, phase) > min(busy_s) / 2


def test_a_slow_cpu_is_left_alone_where_it_does_not_help() -> None:
    """Where all fits the card, `auto` never makes the step longer than the card alone takes."""
    beside = cluster()
    graph = baechi.profile(built(), inputs(), cluster=beside, training=True)
    alone = baechi.place(graph, beside, "single")
    assert set(alone.devices_used) == {CARD}
    assert baechi.place(graph, beside).timeline.makespan_s <= alone.timeline.makespan_s
