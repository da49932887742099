"""Weights that stages on other devices read: one copy a step, and no device waits for their gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_as_loop
from run.pipeline.nets import noise, seeded
from torch import Tensor, nn

import baechi
from baechi.records import Device

ROWS, WIDE, PLACES, MICROBATCHES = 64, 32, 8, 4


class Relative(nn.Module):
    """A layer that is given a table of the model's, as DeBERTa's attention is."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.expand = nn.Linear(WIDE, PLACES), nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor, table: Tensor | None) -> Tensor:
        near = self.project(x).softmax(-1)
        return x + self.expand((near.repeat(1, WIDE // PLACES) if table is None else near @ table).tanh())


class Tables(nn.Module):
    """Blocks that read one table, wherever they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(PLACES, WIDE)
        self.blocks = nn.ModuleList([Relative() for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.table.weight)
        return x.square().mean()


class Asked(nn.Module):
    """Between its blocks the host asks for a value of a device."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDE, WIDE) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).tanh()
            if bool((x.detach() > 2).any()):
                x = x.clamp(max=2)
        return x.square().mean()


def ran(kind: type[nn.Module], order: str, steps: int = 2) -> tuple[baechi.Timeline, baechi.Timeline]:
    """Predicted and measured, with two blocks on each of three devices on which kernels are long."""
    device = Device("cpu:0", "cpu", 2**34, 1.0, {"float64": 1e8}, 1e10)
    devices = tuple(replace(device, name=f"cpu:{number}") for number in range(3))
    cluster = baechi.Cluster(devices, link=baechi.Link(5e-6, 3e9), emulated=True, launch_s=5e-6)
    net, x = seeded(kind), noise(ROWS, WIDE)
    graph = baechi.profile(
        net, x, cluster=cluster, training=True, source="estimate", microbatches=MICROBATCHES
    )
    where = {f"blocks.{number}": number // 2 for number in range(6)}
    plan = baechi.Plan.from_device_map(graph, cluster, {"": 0, **where})
    pipeline = baechi.pipeline(plan, MICROBATCHES, order)  # type: ignore[arg-type]
    baechi.distribute(net, plan=pipeline, loss_weights="rows")
    with cluster:
        for _ in range(steps):
            cluster.emulation.synchronize()
            net(x).backward()
        return pipeline.timeline, cluster.emulation.timeline()


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize("kind", [Tables, Asked])
def test_steps_are_as_predicted(kind: type[nn.Module], order: str) -> None:
    """Within 2 %."""
    predicted, measured = ran(kind, order)
    assert measured.makespan_s == pytest.approx(predicted.makespan_s, rel=0.02)


def test_one_copy_for_all_microbatches() -> None:
    """From the second step on it leaves when the step begins; a gradient comes back for each microbatch."""
    size_bytes = PLACES * WIDE * 8
    _, measured = ran(Tables, "gpipe")
    moved = [span for span in measured.spans if span.kind == "transfer" and span.size_bytes == size_bytes]
    out = [span for span in moved if span.where.startswith("cpu:0>")]
    assert sorted(span.where for span in out) == ["cpu:0>cpu:1", "cpu:0>cpu:2"]
    assert max(span.end_s for span in out) < 1e-4 < measured.makespan_s / 100
    back = [span.where for span in moved if span.where.endswith(">cpu:0")]
    assert len(back) == 2 * MICROBATCHES


def test_nothing_is_sent_in_vain() -> None:
    """Steps that read no table are sent it once more, then no more."""
    size_bytes = PLACES * WIDE * 8
    net, x = seeded(Sometimes), noise(12, WIDE)
    cluster = baechi.Cluster.virtual(3)
    graph = baechi.profile(net, x, cluster=cluster, training=True, source="estimate", microbatches=2)
    where = {"": 0, **{f"blocks.{number}": number // 2 for number in range(6)}}
    plan = baechi.Plan.from_device_map(graph, cluster, where)
    baechi.distribute(net, plan=baechi.pipeline(plan, 2, "gpipe"), loss_weights="rows")
    sent = []
    for reads in (True, True, False, False, True):
        net.reads = reads
        with cluster:
            net(x).backward()
            spans = cluster.emulation.timeline().spans
        sent.append(sum([s.where.startswith("cpu:0>") and s.size_bytes == size_bytes for s in spans]))
    assert sent == [2, 2, 2, 0, 2]


class Sometimes(Tables):
    """It reads its table in some steps only."""

    reads = True

    def forward(self, x: Tensor) -> Tensor:
        table = self.table.weight if self.reads else None
        for block in self.blocks:
            x = block(x, table)
        return x.square().mean()


class Changing(Tables):
    """What it passes on changes: the weight, a view of it, and nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            given: Any = self.table.weight
            x = block(x, given if number % 2 else given[: PLACES // 2].repeat(2, 1))
        return x.square().mean()


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("order", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("kind", [Tables, Changing])
def test_as_the_loop(kind: type[nn.Module], order: str) -> None:
    """Values and gradients, over random placements; rows that do not divide; three steps."""
    for number in range(3):
        model = seeded(kind).double()
        x = {"x": noise(10, WIDE)}
        assert_as_loop(model, x, 3, devices=3, placer=f"random:{number}", order=order, steps=3)


def test_a_table_that_is_frozen_or_written_between_steps() -> None:
    """The copy is the weight of today; a frozen one gets no gradient."""
    net, x = seeded(Tables), noise(12, WIDE)
    cluster = baechi.Cluster.virtual(3)
    graph = baechi.profile(net, x, cluster=cluster, training=True, source="estimate", microbatches=2)
    where = {"": 0, **{f"blocks.{number}": number // 2 for number in range(6)}}
    plan = baechi.Plan.from_device_map(graph, cluster, where)
    plain = seeded(Tables)
    baechi.distribute(net, plan=baechi.pipeline(plan, 2, "gpipe"), loss_weights="rows")
    changed = torch.linspace(-1, 1, PLACES * WIDE, dtype=torch.float64).view(PLACES, WIDE)
    for step in range(4):
        for model in (net, plain):
            model.zero_grad()
            if step == 1:
                with torch.no_grad():
                    model.table.weight.copy_(changed)
            model.table.weight.requires_grad_(step != 2)
        with cluster:
            loss = net(x)
            loss.backward()
        expected = plain(x)
        expected.backward()
        assert torch.allclose(loss, expected, rtol=1e-12)
        for one, other in zip(net.parameters(), plain.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None and other.grad is not None:
                assert torch.allclose(one.grad, other.grad, rtol=1e-9, atol=1e-12)
