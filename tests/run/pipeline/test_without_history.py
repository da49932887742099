"""Tensors without gradients (an index, a mask), of which the code makes views later, elsewhere."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from run.pipeline.nets import noise, seeded
from run.pipeline.witness import cluster_of
from torch import Tensor, nn

import baechi
from baechi.records import Device


class Picks(nn.Module):
    """A tower that makes an index first, and one on another device whose layers read it.

    Args:
        view: what the code makes of the index each time.
    """

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.view = view
        self.front, self.begin = nn.Linear(64, 64), nn.Linear(64, 64)
        self.left, self.right = (nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        left = self.front(x)
        index = left.detach().argsort(1)
        right = self.begin(x)  # the stretch in which the index was made is over
        left = self.left(left)
        for layer in self.right:
            right = layer(right + right.gather(1, self.view(index)))
        return left.square().mean() + right.square().mean()


WHERE = {"front": 0, "left": 0, "begin": 1, "right": 1}


def whole(index: Tensor) -> Tensor:
    return index.view(-1, 64)


def part(index: Tensor) -> Tensor:
    return index[:, :1]


def wider(index: Tensor) -> Tensor:
    return index[:, :, None].expand(-1, -1, 2)[..., 1]


VIEWS = [whole, part, wider]


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: str(view.__name__))
def test_a_view_travels_behind_what_made_its_memory(view: Callable[[Tensor], Tensor], order: str) -> None:
    """Not behind what its device was given since, of later microbatches."""
    slow = Device("cpu:0", "slow", 2**34, 1.0, {"float64": 1e8}, 1e10)
    cluster = baechi.Cluster(
        (slow, replace(slow, name="cpu:1")), link=baechi.Link(5e-6, 5e8), emulated=True, launch_s=5e-6
    )
    x = noise(256, 64)

    def model() -> nn.Module:
        return seeded(lambda: Picks(view))

    graph = baechi.profile(model(), x, cluster=cluster, microbatches=4, training=True, source="estimate")
    pipeline = baechi.pipeline(baechi.Plan.from_device_map(graph, cluster, WHERE), 4, order)  # type: ignore[arg-type]
    dry = baechi.dry_run(model(), x, pipeline)
    assert dry.makespan_s == pytest.approx(pipeline.timeline.makespan_s, rel=0.01)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: str(view.__name__))
def test_views_have_their_own_values(view: Callable[[Tensor], Tensor]) -> None:
    """Also those that travel as one tensor."""
    cluster, x = baechi.Cluster.virtual(2), noise(8, 64)
    model = seeded(lambda: Picks(view))
    expected = sum([seeded(lambda: Picks(view))(part) for part in x.chunk(4)]) / 4
    graph = baechi.profile(model, x, cluster=cluster, microbatches=4, training=True, source="estimate")
    pipeline = baechi.pipeline(baechi.Plan.from_device_map(graph, cluster, WHERE), 4, "gpipe")
    baechi.distribute(model, plan=pipeline, loss_weights="rows")
    with cluster:
        for _ in range(2):
            assert torch.allclose(model(x), expected, rtol=1e-12)


class Taught(nn.Module):
    """A teacher, under `no_grad`, reads what the student's next layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.student, self.teacher, self.last = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        made = self.first(x).relu()
        with torch.no_grad():
            wanted = self.teacher(made)
        return (self.last(self.student(made)) - wanted).square().mean()


BESIDE = [
    {"first": 0, "teacher": 0, "student": 1, "last": 2},  # what it makes is read on another device
    {"first": 0, "teacher": 1, "student": 1, "last": 2},  # both read the same copy
]


@pytest.mark.parametrize("where", BESIDE, ids=["apart", "beside"])
@pytest.mark.parametrize("microbatches", [None, 4], ids=["whole", "microbatches"])
def test_a_teacher_reads_the_copies_of_others(where: dict[str, int], microbatches: int | None) -> None:
    """Each tensor travels to each device once, and the step is as predicted."""
    model, x, cluster = seeded(Taught), noise(32, 64), cluster_of(3, 1e9)
    graph = baechi.profile(
        model, x, cluster=cluster, training=True, source="estimate", microbatches=microbatches or 1
    )
    plan = baechi.Plan.from_device_map(graph, cluster, where)
    if microbatches:
        pipeline = baechi.pipeline(plan, microbatches, "gpipe")
        dry, predicted = baechi.dry_run(model, x, pipeline), pipeline.timeline
    else:
        dry, predicted = baechi.dry_run(model, x, plan), plan.timeline
    forward = [span for span in dry.spans if span.kind == "transfer" and span.where == "cpu:0>cpu:1"]
    assert len(forward) == (microbatches or 1)
    assert dry.makespan_s == pytest.approx(predicted.makespan_s, rel=0.005)
