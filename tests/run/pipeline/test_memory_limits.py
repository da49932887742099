"""Three memory limits give three pipelines; each is kept when it runs, and is the fastest there."""

from math import inf

import pytest
import torch
from run.pipeline.nets import noise, seeded
from run.pipeline.test_emulated import Deep

import baechi
from baechi.errors import PlacementError
from baechi.records import Cluster, Device, LayerGraph, Link

pytestmark = pytest.mark.full

NUMBERS = (1, 4, 8)
X = noise(256, 16)


def devices(each_bytes: int) -> Cluster:
    """Three emulated devices on which kernels take longer than launches."""
    made = [Device(f"cpu:{n}", "slow", each_bytes, 1.0, {"float32": 1e7}, 1e9) for n in range(3)]
    return Cluster(tuple(made), link=Link(5e-6, 3e11), emulated=True, launch_s=5e-6)


@pytest.fixture(scope="module")
def graphs() -> dict[int, LayerGraph]:
    """The costs of one microbatch, by how many there are."""
    return {
        number: baechi.profile(
            seeded(Deep), X, cluster=devices(2**30), microbatches=number, training=True, source="estimate"
        )
        for number in NUMBERS
    }


def placed(graphs: dict[int, LayerGraph], each_bytes: int) -> baechi.Pipeline:
    return baechi.place(graphs, devices(each_bytes), microbatches="auto", optimizer="sgd", effort=0)


def test_three_limits(graphs: dict[int, LayerGraph]) -> None:
    """Less memory gives another pipeline, which is never faster; each runs within its limit."""
    limit, steps, kinds = 2**30, [], set()
    for share in (1.0, 0.9, 0.7):
        limit = round(share * limit)
        pipeline = placed(graphs, limit)
        steps.append(pipeline.timeline.makespan_s)
        kinds.add((pipeline.microbatches, pipeline.order, tuple(pipeline.plan.device_of.values())))
        total = sum(pipeline.timeline.peak_bytes.values())
        assert _fastest_s(graphs, limit, total) >= steps[-1] * (1 - 1e-9)
        # of orders within a thousandth the one with less memory is taken
        assert _fastest_s(graphs, limit) >= steps[-1] * (1 - 1e-3)
        _runs_within(pipeline, limit)
        limit = max(pipeline.timeline.peak_bytes.values())
    assert len(kinds) == 3 and steps == sorted(steps) and steps[0] < steps[-1]


def _fastest_s(graphs: dict[int, LayerGraph], limit: int, most_bytes: float = inf) -> float:
    """The fastest step of any number alone, and of any order tried for it, that fits, with so many bytes."""
    found = []
    for number in NUMBERS:
        try:
            one = baechi.place(graphs[number], devices(limit), microbatches=number, optimizer="sgd", effort=0)
        except PlacementError:
            continue
        steps = [(one.timeline.makespan_s, one.timeline.peak_bytes)]
        steps += [(tried.step_s, tried.peak_bytes) for tried in one.tried if tried.fits]
        found += [step_s for step_s, peaks in steps if sum(peaks.values()) <= most_bytes]
    return min(found)


def _runs_within(pipeline: baechi.Pipeline, limit: int) -> None:
    """Two steps with their optimizer: a device that is too full raises."""
    model = baechi.distribute(seeded(Deep), plan=pipeline, loss_weights="rows")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cluster = pipeline.plan.cluster
    assert all(device.memory_bytes == limit for device in cluster.devices)
    with cluster:
        for _ in range(2):
            optimizer.zero_grad()
            model(X).backward()
            optimizer.step()
        measured = cluster.emulation.timeline()
    assert all(peak <= limit for peak in measured.peak_bytes.values())
