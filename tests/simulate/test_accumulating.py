"""Steps that add to the gradients of steps before: the simulator beside the run."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.simulate.bounds import shortest_step_s


class _Cells(nn.Module):
    """A cell whose weights every step of a loop reads."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.after = nn.GRUCell(16, 32), nn.Linear(32, 4)

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.zeros(len(values), 32)
        for step in values.unbind(1):
            hidden = self.cell(step, hidden)
        after: Tensor = self.after(hidden)
        return after


def _layers() -> nn.Module:
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])


def _normed() -> nn.Module:
    blocks = [(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*[layer for block in blocks for layer in block])


@pytest.mark.parametrize("like", ["A100-80GB", "CPU"])
@pytest.mark.parametrize("placer", ["single", "random:1"])
@pytest.mark.parametrize(
    ("build", "batch"),
    [(_layers, torch.ones(8, 64)), (_normed, torch.ones(2, 8, 8, 8)), (_Cells, torch.ones(4, 6, 16))],
    ids=["layers", "normed", "cells"],
)
def test_as_it_runs(build: Callable[[], nn.Module], batch: Tensor, placer: str, like: str) -> None:
    """Steps within 5 %, and longer than those without; peaks not below the run's, at most 15 % above."""
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like=like)
    model = build().train()
    graph = baechi.profile(model, batch, cluster=cluster, accumulate=True, source="estimate")
    plan = baechi.place(graph, cluster, placer, optimizer="sgd")
    run = baechi.dry_run(model, batch, plan, optimizer="sgd")
    simulated = baechi.simulate(plan)
    assert simulated.makespan_s == pytest.approx(run.makespan_s, rel=0.05)
    assert shortest_step_s(graph, cluster) <= simulated.makespan_s
    for name, peak_bytes in run.peak_bytes.items():
        assert peak_bytes <= simulated.peak_bytes[name] <= 1.15 * peak_bytes
    plain = baechi.profile(model, batch, cluster=cluster, source="estimate")
    weights = len(list(model.parameters()))
    for phase, launches in (("host_forward_s", 0), ("host_backward_s", weights)):
        more_s = graph.total(phase) - plain.total(phase)
        assert more_s == pytest.approx(launches * cluster.launch_s)


@pytest.mark.parametrize("like", ["A100-80GB", "CPU"])
def test_a_step_in_microbatches(like: str) -> None:
    """Each microbatch adds: the later ones to the first one's, and that to what was there."""
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like=like)
    model, batch = _layers().train(), torch.ones(32, 64)
    graph = baechi.profile(model, batch, cluster=cluster, microbatches=4, accumulate=True, source="estimate")
    pipeline = baechi.place(graph, cluster, "m-etf", optimizer="sgd", microbatches=4)
    assert isinstance(pipeline, baechi.Pipeline)
    run = baechi.dry_run(model, batch, pipeline, optimizer="sgd")
    assert pipeline.timeline.makespan_s == pytest.approx(run.makespan_s, rel=0.01)
