"""A step leaves nothing behind that only the garbage collector would find: memory is free when it ends."""

import gc
from collections.abc import Iterator

import pytest
import torch
from run.pipeline.nets import noise, seeded
from run.pipeline.witness import cluster_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

import baechi
from baechi.run.pipeline.lanes.lane_step import LaneStep


@pytest.fixture(autouse=True)
def _uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def steps_alive() -> int:
    """How many microbatches' steps there are; other tests may hold some."""
    return len([one for one in gc.get_objects() if type(one) is LaneStep])


class Repeated(nn.Module):
    """What runs again in backward sends ahead what is not read there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        made = checkpoint_sequential(list(self.blocks), 2, self.first(x), use_reentrant=True)
        result: Tensor = self.last(made)
        return result.square().mean()


def test_steps() -> None:
    """Peaks of later steps are those of a dry run, and no microbatch's step is alive."""
    model, x, cluster = seeded(Repeated), noise(512, 16), cluster_of(4, 1e12)
    graph = baechi.profile(model, x, cluster=cluster, training=True, source="estimate", microbatches=2)
    pipeline = baechi.pipeline(baechi.place(graph, cluster, "even"), 2, "interleaved")
    dry, before = baechi.dry_run(model, x, pipeline), steps_alive()
    baechi.distribute(model, plan=pipeline, loss_weights="rows")
    with cluster:
        for _ in range(3):
            cluster.emulation.synchronize()
            model.zero_grad()
            model(x).backward()
        assert cluster.emulation.timeline().peak_bytes == dry.peak_bytes
    assert steps_alive() == before


class Kept:
    """What a node of autograd keeps."""

    alive = 0

    def __init__(self) -> None:
        Kept.alive += 1

    def __del__(self) -> None:
        Kept.alive -= 1


class Keeps(torch.autograd.Function):
    """A node that keeps something."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.kept = Kept()  # type: ignore[attr-defined]
        return x * 2


class ExitsEarly(nn.Module):
    """The last layer is left out from the second call on, though its input was sent to it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.short = False

    def forward(self, x: Tensor) -> Tensor:
        made = self.first(Keeps.apply(x))
        result: Tensor = made if self.short else self.last(made)
        return result.square().mean()


def test_what_is_sent_in_vain() -> None:
    """It goes with the step, and with it all that led there."""
    model, x, cluster = seeded(ExitsEarly), noise(6, 4).requires_grad_(), baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, device_map={"first": 0, "last": 1}, source="estimate")
    with cluster:
        for model.short in (False, True):
            Kept.alive = 0
            model(x)
            assert Kept.alive == 0
