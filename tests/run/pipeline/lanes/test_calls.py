"""A layer that is called again in a microbatch is another node of the plan, in another run."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from torch import Tensor, nn

import baechi
from baechi.run.pipeline.lanes.lane_step import LaneStep


class Again(nn.Module):
    """There, elsewhere, and there again, with functional ops in between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        there = torch.relu(self.a(x))
        elsewhere = torch.relu(self.b(there))
        return torch.relu(self.a(elsewhere)).square().mean()


def test_calls_are_counted_in_each_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are those of the graph's nodes; else the second call runs as the first one's run."""
    reached: dict[int, list[str]] = defaultdict(list)
    reach = LaneStep.reach

    def noted(step: LaneStep, layer: str, args: Any, kwargs: Any) -> str:
        call = reach(step, layer, args, kwargs)
        reached[id(step)].append(call)
        return call

    monkeypatch.setattr(LaneStep, "reach", noted)
    model, x, cluster = seeded(Again)(), noise(4, 4), baechi.Cluster.virtual(2)
    baechi.distribute(model, x, cluster=cluster, microbatches=2, device_map={"a": 0, "b": 1})
    for _ in range(2):
        reached.clear()
        model(x).backward()
    assert list(reached.values()) == [["a", "b", "a#1"]] * 2
