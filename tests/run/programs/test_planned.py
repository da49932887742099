"""What is planned for a model that will run as programs is what its programs take."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import baechi
from baechi.records.timeline import Timeline

PROGRAMS = baechi.Stages(backend="aot_eager")


class _Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)])
        self.head = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).square().mean()


def _run(*, charged: bool, microbatches: int | None = None) -> tuple[Timeline, Timeline]:
    """The predicted step, and the emulated one."""
    cluster = baechi.Cluster.virtual(2)
    cluster = replace(cluster, host=baechi.HostCosts.usual()) if charged else cluster
    model, x = _Blocks(), torch.ones(16, 64)
    baechi.distribute(
        model,
        x,
        cluster=cluster,
        placer="even" if microbatches is None else "auto",
        source="estimate",
        compile=PROGRAMS,
        microbatches=microbatches,
        optimizer="sgd",
        verbose=False,
    )
    with cluster:
        for _ in range(2):
            cluster.emulation.synchronize()
            model.zero_grad()
            model(x).backward()
        return baechi.plan_of(model).timeline, baechi.last_step(model)


@pytest.mark.parametrize("charged", [True, False])
def test_a_dry_run_of_programs_is_exact(charged: bool) -> None:
    """Time and peaks: it runs programs, too."""
    predicted, emulated = _run(charged=charged)
    assert predicted.source == "dry run"
    assert predicted.makespan_s == pytest.approx(emulated.makespan_s, rel=1e-9)
    assert predicted.peak_bytes == emulated.peak_bytes


def test_a_pipeline_of_programs_is_charged_no_calls_and_lanes() -> None:
    """As the code is written it would be predicted to take three times as long."""
    predicted, emulated = _run(charged=True, microbatches=4)
    assert predicted.makespan_s == pytest.approx(emulated.makespan_s, rel=0.1)


def test_a_model_that_cannot_be_captured_is_refused_before_it_is_placed() -> None:
    """The dry run finds it, with the line; the model is as it was."""

    class Decides(_Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (2 if float(x.sum()) > 0 else 1)

    model, x = Decides(), torch.ones(4, 64)
    before = model(x)
    cluster = baechi.Cluster.virtual(2)
    with pytest.raises(baechi.CompileError, match=r"test_planned\.py"):
        baechi.distribute(model, x, cluster=cluster, placer="even", compile=PROGRAMS, verbose=False)
    assert torch.equal(model(x), before)
    baechi.distribute(model, x, cluster=cluster, placer="even", verbose=False)
