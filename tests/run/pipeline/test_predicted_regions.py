"""Predictions of models whose code checkpoints regions, beside dry runs."""

from typing import Any

import pytest
import torch
from run.pipeline.predicted import ORDERS, RATES, timelines
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baechi

pytestmark = pytest.mark.default_cases(2)


class Blocks(nn.Module):
    """Blocks that the code checkpoints: the backward of each stage runs a torn one again as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), *self.last())
            for _ in range(3)
        )

    def last(self) -> list[nn.Module]:
        return []

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x.square().mean()


class Dropping(Blocks):
    """A dropout's first kernels draw, and read nothing that was sent."""

    def last(self) -> list[nn.Module]:
        return [nn.Dropout(0.1)]


@pytest.mark.default_cases(2)
@RATES
@ORDERS
@pytest.mark.parametrize("placer", ["random:1", "even"])
@pytest.mark.parametrize("kind", [Blocks, Dropping])
def test_torn_regions_run_again_as_a_whole(
    kind: type[nn.Module], rate: float, at_most: float, order: Any, placer: str
) -> None:
    """On all their devices, and one thread issues them; those of one stage are run by that alone."""
    dry, predicted = timelines(kind, (64, 64), rate, order, placer)
    assert predicted.makespan_s == pytest.approx(dry.makespan_s, rel=at_most / 4)


class Led(Blocks):
    """A layer before the blocks: each block lies on a device, and reads what the one before it has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.first(x))


def test_what_a_region_reads_from_elsewhere_is_sent_again() -> None:
    """Behind all that was issued there: the step is a quarter longer than without that."""
    dry, predicted = timelines(Led, (64, 64), 1e9, "1f1b")
    assert predicted.makespan_s == pytest.approx(dry.makespan_s, rel=0.005)


class Stack(nn.Module):
    """Blocks that nothing checkpoints, until a plan does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


def test_what_a_recomputed_module_reads_is_sent_once() -> None:
    """Its copy is kept, and the backward of the transfer is that of the stage: links bound this step."""
    model, x, names = Stack(), torch.zeros(256, 64), ["blocks.0", "blocks.1", "blocks.2"]
    cluster = baechi.Cluster.virtual(2, link=baechi.Link(1e-5, 1e8))
    graph = baechi.profile(model, x, cluster=cluster, microbatches=4, training=True, source="estimate")
    places = {node: f"cpu:{int('blocks.1' in node)}" for node, _ in graph.placed_costs()}
    plan = baechi.place(graph, cluster, lambda known, _: baechi.Plan(known, cluster, places), recompute=names)
    steps = baechi.pipeline(plan, 4)
    dry, predicted = baechi.dry_run(model, x, steps), baechi.simulate(steps)
    assert predicted.makespan_s == pytest.approx(dry.makespan_s, rel=0.005)
    between = [span for span in dry.spans if span.where in ("cpu:0>cpu:1", "cpu:1>cpu:0")]
    assert len(between) == 4 * 4
