"""A slow CPU beside a fast card, both emulated: what is placed there, that it overlaps, the numbers.

`"cpu:1"` is a device like others. `"cpu"` is the host itself, which goes on when a layer there has run.
"""

from dataclasses import replace

import pytest
import torch
from architectures import HELD_IN, OWN, Architecture
from same import assert_same, step
from torch import nn

import baechi
from baechi import Cluster, Device, Link, PlacementError
from baechi.order import LaunchOrder, waiting_layers
from baechi.records.cluster import HOST
from baechi.records.datasheet import datasheet
from baechi.records.timeline import Span

pytestmark = pytest.mark.default_cases(2)

CARD, CPU = "cpu:0", "cpu:1"


def cluster(card_bytes: int = 2**30, cpu: str = CPU) -> Cluster:
    """A card of 20 TFLOP/s, a CPU of half of one with more memory, PCIe between them."""
    sheets = [datasheet("A100-80GB") | {"memory_bytes": card_bytes}, datasheet("CPU")]
    devices = [Device(n, k, **s) for n, k, s in zip((CARD, cpu), ("A100-80GB", "CPU"), sheets, strict=True)]
    fast = {(HOST, CARD): Link(5e-6, 300e9)}  # so that the card does not wait for its inputs
    if cpu == "cpu":
        fast |= dict.fromkeys([(HOST, cpu), (cpu, HOST)], Link(0.0, 1e18))
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


def overlap_s(spans: tuple[Span, ...], phase: str, cpu: str = CPU) -> float:
    """How long both devices compute at the same time."""
    mine, others = (
        [s for s in spans if s.where == where and s.kind == "compute" and s.phase == phase]
        for where in (CARD, cpu)
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


class TableFirst(Branches):
    """The code reaches the look-up before the card's work."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        table = self.table(ids)
        out: torch.Tensor = self.head(torch.cat([self.left(x), table], dim=1))
        return out


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_the_host_computes_while_cards_have_work(training: bool) -> None:
    """A layer that the host computes itself launches when the card has work for as long: it overlaps, the
    step takes what was planned. In the code's order the card idles until it is over."""
    torch.manual_seed(0)
    reference = step(model := TableFirst(), inputs(), training=training)
    beside = cluster(cpu="cpu")
    graph = baechi.profile(model, inputs(), cluster=beside, training=training)
    chosen = {node: "cpu" if node == "table" else CARD for node in graph.placed()}
    plan = baechi.Plan(graph, beside, chosen, [*graph.placed()])
    took_s, overlaps_s = {}, {}
    for reorder in (False, "host", "threads"):
        torch.manual_seed(0)
        distributed = baechi.assign(TableFirst(), plan, reorder=reorder)
        with beside:
            result, timeline = step(distributed, inputs(), training=training), baechi.last_step(distributed)
        assert_same(reference, result, tolerance=2e-5)
        took_s[reorder] = timeline.makespan_s
        overlaps_s[reorder] = overlap_s(timeline.spans, "forward", "cpu")
    lookup_s = next(s.end_s - s.start_s for s in plan.timeline.spans if s.layer == "table")
    assert overlaps_s[False] == 0 and took_s[False] > took_s["host"] + 0.9 * lookup_s
    for reorder in ("host", "threads"):
        assert overlaps_s[reorder] > lookup_s / 2
        assert took_s[reorder] <= plan.timeline.makespan_s


def test_who_reads_the_host_at_once_lets_nobody_go_first() -> None:
    """Where all that follows needs what the host computes, nothing waits, and forward is not slowed."""
    beside = cluster(cpu="cpu")
    chain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    graph = baechi.profile(chain, torch.randn(4, 8), cluster=beside)
    plan = baechi.Plan(graph, beside, {"0": CARD, "1": "cpu", "2": CARD})
    order = LaunchOrder.of(plan)
    assert order.first == {"1": ("0",)}
    assert waiting_layers(order) == []


@pytest.mark.parametrize("architecture", [*OWN, *HELD_IN], ids=lambda row: row.name)
def test_same_numbers_where_the_host_computes(architecture: Architecture) -> None:
    """Random plans over two cards and the host itself, both launchers."""
    devices = [Device(name, "A100-80GB", **datasheet("A100-80GB")) for name in ("gpu:0", "gpu:1")]
    beside = Cluster((*devices, Device("cpu", "CPU", **datasheet("CPU"))), emulated=True)
    reference = step(architecture.build(), architecture.inputs(), training=True)
    graph = baechi.profile(architecture.build(), architecture.inputs(), cluster=beside, training=True)
    for seed, reorder in ((0, "host"), (1, "threads")):
        plan = baechi.place(graph, beside, f"random:{seed}")
        assert architecture in OWN or LaunchOrder.of(plan).first
        model = baechi.assign(architecture.build(), plan, reorder=reorder)
        with beside:
            result = step(model, architecture.inputs(), training=True)
        assert_same(reference, result, tolerance=2e-5)
