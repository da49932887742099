"""Less memory gives another plan: microbatches, modules that run again and order are chosen together."""

from itertools import combinations

import pytest
import torch
from torch import nn

import baechi
from baechi import Cluster, LayerGraph, Pipeline
from baechi.errors import PlacementError

NUMBERS = (1, 4)
LIMITS = ("64MiB", "2MiB", "1MiB")
BLOCKS = ["0", "1", "2"]
X = torch.linspace(-1, 1, 8 * 32 * 32, dtype=torch.double).view(8, 32, 32)


class Net(nn.Sequential):
    """Three unequal blocks; returns the loss."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        widths = (128, 256, 128)
        super().__init__(
            *[nn.Sequential(nn.Linear(32, w), nn.GELU(), nn.Linear(w, 32)).double() for w in widths]
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).square().mean()


def graphs() -> dict[int, LayerGraph]:
    cluster = Cluster.virtual(2)
    return {
        number: baechi.profile(Net(), X, cluster=cluster, source="estimate", microbatches=number)
        for number in NUMBERS
    }


def fastest_of_all(known: dict[int, LayerGraph], cluster: Cluster) -> float:
    """The step of the best number with the best blocks, each ordered as well as the simulator knows."""
    found = []
    for number in known:
        for names in [list(some) for size in range(4) for some in combinations(BLOCKS, size)]:
            try:
                made = baechi.place(
                    known[number], cluster, microbatches=number, effort=0, recompute=names or None
                )
            except PlacementError:
                continue
            found.append(made.timeline.makespan_s)
    return min(found)


def runs(made: Pipeline, cluster: Cluster) -> dict[str, int]:
    """The peaks of an emulated step; its loss is that of the plain model."""
    expected = Net()(X).item()
    model = baechi.distribute(Net(), plan=made)
    with cluster:
        loss = model(X)
        loss.backward()
        assert loss.item() == pytest.approx(expected, rel=1e-12)
        return dict(baechi.last_step(model).peak_bytes)


@pytest.mark.full
def test_three_limits_give_three_plans() -> None:
    """Each is as fast as the best of all numbers with all blocks at that limit, and keeps it when it runs."""
    known, seen = graphs(), []
    for limit in LIMITS:
        cluster = Cluster.virtual(2, memory=limit)
        made = baechi.place(known, cluster, microbatches="auto", effort=0, recompute="auto")
        assert made.timeline.makespan_s <= fastest_of_all(known, cluster) * (1 + 1e-9)
        peaks = runs(made, cluster)
        assert all(peaks[device.name] <= device.memory_bytes for device in cluster.devices)
        seen.append((made.microbatches, made.plan.recompute, made.order, made.timeline.makespan_s))
    assert len({one[:3] for one in seen}) == len(LIMITS)
    assert seen == sorted(seen, key=lambda one: one[3])
