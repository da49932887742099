"""Memory that comes and goes in a layer, forward and backward."""

from typing import Any

import torch
from baechi.capture.graph.memory_steps import steps, sums
from torch import nn

import baechi
from baechi import Cluster, LayerGraph
from baechi.capture.watch.trace import BackwardOp, Storage


def graph_of(model: nn.Module, *inputs: torch.Tensor, training: bool = True) -> LayerGraph:
    return baechi.profile(model, inputs, cluster=Cluster.virtual(1), training=training, source="estimate")


def storage(index: int, size_bytes: int, died: int | None = None) -> Storage:
    return Storage(index, size_bytes, died=died)


def op(makes: list[Storage], reads: list[Storage], *, adds: bool = False) -> BackwardOp:
    return BackwardOp(0, tuple(makes), 0, 0, True, tuple(reads), {}, adds)


def test_steps_of_a_backward() -> None:
    """x + f(x): f's part reads the gradient of its output (out), what it kept (kept), what its input was
    kept for (lent), makes two tensors, and adds the second to the gradient that x has already (other)."""
    out, kept, lent, other = storage(1, 8, 12), storage(2, 4, 12), storage(3, 16, 13), storage(4, 8, 14)
    inner, own, total = storage(5, 32, 13), storage(6, 8, 14), storage(7, 8, 20)
    part = [
        (11, op([inner], [out, kept])),
        (12, op([own], [inner, lent])),
        (13, op([total], [own, other], adds=True)),
    ]
    added = sums(part, set())
    assert [(one.event, one.there, one.own, one.total) for one in added] == [(13, other, own, total)]
    assert steps(part, [kept], [("out", out), ("lent", lent)], added) == [
        [0.0, 32, "", 0],  # inner
        [0.333, 36, "out", 8],  # and own, without what was kept for it
        [0.667, 4, "lent", 16],  # inner has gone
        [0.667, 4, "add", 8],
        [0.667, 4, "sum", 8],  # own goes on, where the sum is not made
    ]


def test_sums_of_weights_are_none() -> None:
    """A tied weight's gradients are added up, too; these are always where the weight is."""
    own, there, total = storage(1, 4), storage(2, 4), storage(3, 4)
    part = [(5, op([own], [])), (6, op([total], [own, there], adds=True))]
    assert len(sums(part, set())) == 1
    assert sums(part, {3}) == []


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


class Joined(nn.Module):
    """Two branches, joined by channels: their gradients are parts of one."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(1, 2, 1), nn.Conv2d(1, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([torch.relu(self.left(x)), torch.relu(self.right(x))], dim=1)
        return (joined * joined).sum()


def test_a_gradient_with_gaps() -> None:
    """The gradient of a joined branch lies in that of all: a copy has its gaps."""
    graph = graph_of(Joined(), torch.randn(3, 1, 4, 4))
    spans = {name: data.get("upstream_span_bytes", 0) for name, data in graph.nodes(data=True)}
    plane, joined = 16 * 4, 8 * 16 * 4
    assert spans["glue:/relu#0"] == 2 * joined + 2 * plane
    assert spans["glue:/relu#1"] == 2 * joined + 6 * plane


def test_rising_memory() -> None:
    """What a layer holds at most, by the quarter of its kernels: the last is all that it ever does."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    graph = baechi.profile(
        nn.Sequential(layer).eval(),
        (torch.randn(2, 4, 16),),
        cluster=Cluster.virtual(1),
        training=False,
        source="estimate",
        no_split_module_classes=["TransformerEncoderLayer"],
    )
    data = graph.nodes["0"]
    parts, sizes = zip(*data["rising_bytes"], strict=True)
    assert list(parts) == sorted(set(parts)) and list(sizes) == sorted(set(sizes))
    assert sizes[-1] == data["output_bytes"] + data["temp_bytes"]
