"""Checkpointed regions, whose code torch captures as graphs of their own: each layer runs where it lies."""

import copy
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import SEED, assert_same_gradients, loop
from run.pipeline.nets import noise, seeded
from run.programs.test_calls import EXACT, programs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baechi

X = noise(8, 6)
WHERE = {"first": 0, "blocks.0": 0, "blocks.1": 1, "blocks.2": 0, "last": 1}


class Checkpointed(nn.Module):
    """Blocks that draw, each in a region if asked."""

    regions = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 6), nn.GELU()) for _ in range(3)]
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden: Any = self.first(x)
        for block in self.blocks:
            made = checkpoint(block, hidden, use_reentrant=False) if self.regions else block(hidden)
            hidden = hidden + made
        return self.last(hidden).square().mean()


class Plain(Checkpointed):
    regions = False


@pytest.mark.parametrize("number", [1, 4])
def test_layers_run_where_they_lie(number: int) -> None:
    """There are as many programs as without regions, and the numbers are those of the loop."""
    counts = []
    split: dict[str, Any] = {"microbatches": number, "coupled": "accept"} if number > 1 else {}
    for kind in (Checkpointed, Plain):
        model = seeded(kind)
        plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
        baechi.distribute(model, X, cluster=cluster, device_map=WHERE, compile=EXACT, **split)
        torch.manual_seed(SEED)
        if number > 1:
            expected = loop(plain, {"x": X}, number)
        else:
            expected = plain(X)
            expected.backward()
        torch.manual_seed(SEED)
        loss = model(X)
        counts.append(programs(model))
        loss.backward()
        assert torch.allclose(loss.detach(), expected.detach(), rtol=1e-13)
        assert_same_gradients(model, plain, 1e-13)
    assert counts[0] == counts[1] >= 4
