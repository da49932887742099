"""Random splits of a small network, by random placers: values, gradients, weights are those of its twin."""

import copy
import random
from typing import Any

import pytest
import torch
from run.split.split_layers import assert_same, words
from torch import nn
from torch.nn import functional

import baechi

pytestmark = pytest.mark.full

WORDS, WIDTH = 17, 6
DIMS = {
    "embed": ("num_embeddings", "dim", "rows"),
    "positions": ("num_embeddings", "dim", "rows"),
    "up": ("out", "in", "rows"),
    "down": ("out", "in", "rows"),
    "conv": ("out_channels", "in_channels", "rows"),
    "head": ("out", "in", "rows"),
}


class Drawn(nn.Module):
    """Ties, layers that are called twice, writes in place, statistics, and numbers that are drawn."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(7, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.statistics, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.3)
        self.act = nn.ReLU(inplace=draw.random() < 0.5)
        self.twice, self.tied = draw.random() < 0.5, draw.random() < 0.6
        self.head = nn.Linear(WIDTH, WORDS, bias=not self.tied)
        if self.tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for _ in range(1 + self.twice):
            hidden = hidden + self.down(self.act(self.up(hidden)))
        mixed = self.statistics(self.conv(hidden.transpose(1, 2))).transpose(1, 2)
        logits = self.head(self.drop(torch.cat([hidden[:, :2], mixed[:, 2:]], 1)))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def spec_of(draw: random.Random, dim: str, devices: int) -> Any:
    if draw.random() < 0.6:
        return {dim: draw.choice([2, 3, 4])}
    matrix = [draw.randrange(devices) for _ in range(draw.choice([1, 2, 3]))]
    return baechi.BatchSpec({dim: draw.choice([2, 3, 5])}, matrix, draw.choice([None, 0, devices - 1]))


@pytest.mark.parametrize("seed", range(12))
def test_drawn(seed: int) -> None:
    """Two steps of an optimizer."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = Drawn(draw).double()
    plain = copy.deepcopy(model)
    inputs, devices = (words(4, 7, below=WORDS), words(4, 7, below=WORDS)), draw.choice([2, 3, 4])
    names = draw.sample([name for name in DIMS if name != "embed" or not model.tied], draw.choice([1, 2, 4]))
    specs = {name: spec_of(draw, draw.choice(DIMS[name]), devices) for name in names}
    if draw.random() < 0.5:  # cut alike: what lies between stays sharded
        specs |= {"up": {"out": devices}, "down": {"in": devices}}
    cluster = baechi.Cluster.virtual(devices, memory="1GiB")
    baechi.distribute(
        model,
        inputs,
        cluster=cluster,
        split=specs,
        placer=draw.choice(["round-robin", "m-etf", f"random:{seed}", "auto"]),
        reorder=draw.choice([True, False, "threads"]),
        effort=0,
    )
    assert baechi.plan_of(model).dry is not None  # it runs without values, too
    make, foreach = draw.choice([torch.optim.SGD, torch.optim.AdamW]), draw.random() < 0.5
    for network in (model, plain):
        optimizer = make(network.parameters(), lr=0.05, foreach=foreach)
        torch.manual_seed(seed)
        for _ in range(2):
            optimizer.zero_grad()
            if network is model:
                with cluster:
                    network(*inputs).backward()
            else:
                network(*inputs).backward()
            optimizer.step()
    assert_same(model, plain)
    assert_same(copy.deepcopy(model), plain, grads=False)
