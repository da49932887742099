"""Memory that outlives backward."""

from typing import Any

import torch
from torch import nn

import baechi
from baechi import Cluster, LayerGraph


def graph_of(model: nn.Module, *inputs: torch.Tensor, training: bool = True) -> LayerGraph:
    return baechi.profile(model, inputs, cluster=Cluster.virtual(1), training=training, source="estimate")


class Cached(nn.Module):
    """Returns an object that holds what autograd keeps, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.inner(x).exp()
        return {"out": self.head(hidden).sum(), "cache": Box(hidden)}


class Box:
    """No container that anybody looks into."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held


def test_what_outlives_backward() -> None:
    """What the caller gets in an object is there when backward is over."""
    graph = graph_of(Cached(), torch.randn(2, 8))
    lasting = {name: data.get("lasting_bytes", 0) for name, data in graph.nodes(data=True)}
    assert {name: size for name, size in lasting.items() if size} == {"glue:/exp#0": 2 * 16 * 4}
