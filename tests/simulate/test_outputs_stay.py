"""Outputs that stay where they were made: predicted as they run, and no bound lies above the step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi.records import Cluster, Device, Link, Plan
from baechi.simulate.bounds import shortest_step_s

pytestmark = pytest.mark.default_cases(2)

ROWS = torch.arange(128).view(4, 32) % 50


class Language(nn.Module):
    """A loss and large logits, which the caller holds until the step is over."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(32, 2000)
        self.middle = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(ids)
        for layer in self.middle:
            x = torch.tanh(layer(x))
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten()), logits


class Towers(nn.Module):
    """Losses on two devices, beside what they are computed from. Backward of one begins before the other."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.ModuleList([nn.Linear(64, 64) for _ in range(2)])
        self.right = nn.ModuleList([nn.Linear(64, 64) for _ in range(6)])

    def forward(self, x: Tensor) -> Any:
        left, right = x, x
        for layer in self.left:
            left = torch.tanh(layer(left))
        for layer in self.right:
            right = torch.tanh(layer(right))
        return {"left": left, "losses": (left.mean(), right.pow(2).mean()), "right": right}


def cluster(flops: float) -> Cluster:
    devices = [Device(f"cpu:{k}", "made up", 1 << 34, 1.0, {"float32": flops}, 1e12) for k in range(3)]
    return Cluster(tuple(devices), link=Link(5e-6, 3e11), emulated=True, launch_s=5e-6)


def plan_for(
    build: Callable[[], nn.Module], batch: Tensor, devices: Cluster, placer: str, **more: Any
) -> Plan:
    torch.manual_seed(0)
    model = build().train(more["training"])
    graph = baechi.profile(model, batch, cluster=devices, outputs="device", **more)
    return baechi.place(graph, devices, placer, optimizer="adam" if more["training"] else None)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("flops", [1e8, 1e14], ids=["slow-devices", "slow-host"])
@pytest.mark.parametrize("placer", ["single", "even", "random:3"])
@pytest.mark.parametrize(("build", "batch"), [(Language, ROWS), (Towers, torch.ones(16, 64))])
def test_as_it_runs(
    build: Callable[[], nn.Module], batch: Tensor, placer: str, flops: float, training: bool
) -> None:
    """Steps within 2 % or a launch of the dry run's, peaks not below; the host fetches nothing."""
    devices = cluster(flops)
    plan = plan_for(build, batch, devices, placer, training=training)
    predicted, ran = plan.timeline, baechi.dry_run(build().train(training), batch, plan)
    assert not [span for span in (*predicted.spans, *ran.spans) if span.where.endswith(">host")]
    assert predicted.makespan_s == pytest.approx(ran.makespan_s, rel=0.02, abs=6e-6)
    for name in devices.names:
        assert ran.peak_bytes[name] <= predicted.peak_bytes[name] <= 1.2 * ran.peak_bytes[name]
    assert shortest_step_s(plan.graph, devices) <= predicted.makespan_s * (1 + 1e-9)


def test_logits_that_stay_take_room() -> None:
    """In training the caller holds the logits through backward and the optimizer's step, on their device."""
    devices = cluster(1e8)
    plan = plan_for(Language, ROWS, devices, "single", training=True)
    home = replace(plan, graph=plan.graph.noted(outputs="inputs"))
    stays, goes = (baechi.dry_run(Language().train(), ROWS, one).peak_bytes["cpu:0"] for one in (plan, home))
    assert stays - goes == pytest.approx(4 * ROWS.numel() * 2000, rel=0.01)
    assert stays <= plan.timeline.peak_bytes["cpu:0"] <= 1.01 * stays
