"""The simulator beside the run: the same view taken again, parts of an input, checks that make nothing."""

from collections.abc import Callable

import pytest
import torch
from run.dry.steps import ran
from torch import Tensor, nn
from torch.nn import functional

import baechi


class _Layers(nn.Module):
    """Three layers, called by a function of theirs."""

    def __init__(self, run: Callable[["_Layers", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Linear(32, 32) for _ in range(3))
        self.run = run

    def forward(self, values: Tensor) -> Tensor:
        return self.run(self, values)


def _again(layers: _Layers, values: Tensor) -> Tensor:
    """A new view each time, of one tensor: each travels, and its copy is gone behind its reader."""
    scale, hidden = layers.first(values[:, 0]), layers.second(values[:, 1])
    for _ in range(8):
        hidden = hidden * scale[:, None].sum(1)
        hidden = layers.third(hidden) + scale[:, :]
    return hidden


def _parts(layers: _Layers, values: Tensor) -> Tensor:
    """Parts of an input, which one device gets whole."""
    first, second, third = values.unbind(1)
    made: Tensor = layers.first(first) + layers.second(second) + layers.third(third)
    return made


def _labels(layers: _Layers, values: Tensor) -> Tensor:
    """Torch asks for the smallest label and for the largest one."""
    hidden = layers.first(values[:, 0])
    made: Tensor = layers.second(hidden + functional.one_hot(hidden.argmax(-1), 32))
    return made


def _inverse(layers: _Layers, values: Tensor) -> Tensor:
    """Torch checks what it inverts, in a kernel that returns nothing."""
    square = layers.first(values[:, 0]).T @ values[:, 1] + 64 * torch.eye(32)
    made: Tensor = layers.second(torch.linalg.inv(torch.linalg.inv(square)))
    return made


@pytest.mark.parametrize("placer", ["single", "random:1"])
@pytest.mark.parametrize("run", [_again, _parts, _labels, _inverse])
def test_as_it_runs(run: Callable[[_Layers, Tensor], Tensor], placer: str) -> None:
    """Steps are equal to a hundredth of a percent; peaks are not below the run's, at most 15 % above."""
    values = torch.rand(8, 3, 32)
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="A100-80GB")
    graph = baechi.profile(_Layers(run).eval(), values, cluster=cluster, source="estimate")
    plan = baechi.place(graph, cluster, placer)
    step = ran(_Layers(run), (values,), plan, "inference")
    assert plan.timeline.makespan_s == pytest.approx(step.makespan_s, rel=1e-4)
    for name, held in step.peak_bytes.items():
        assert held <= plan.timeline.peak_bytes[name] <= held * 1.15


class _ReadsParts(nn.Module):
    """Large inputs of which it reads parts; one of them late."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, early: Tensor, late: Tensor) -> Tensor:
        hidden = self.first(early[:, 0]).relu() + early[:, 1]
        made: Tensor = self.second(hidden) * late[:, 1]
        return made


@pytest.mark.parametrize("way", ["inference", "sgd"])
@pytest.mark.parametrize("placer", ["single", "random:2"])
def test_large_inputs(placer: str, way: str) -> None:
    """One device gets them whole: nothing runs before all are there, and autograd keeps one while it keeps
    a part. Several get parts."""
    inputs = torch.rand(2048, 2, 64), torch.rand(2048, 2, 64)
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="A100-80GB")
    graph = baechi.profile(
        _ReadsParts(), inputs, cluster=cluster, source="estimate", training=way != "inference"
    )
    plan = baechi.place(graph, cluster, placer, optimizer=None if way == "inference" else way)
    step = ran(_ReadsParts(), inputs, plan, way)
    assert plan.timeline.makespan_s == pytest.approx(step.makespan_s, rel=0.02)
    for name, held in step.peak_bytes.items():
        assert held <= plan.timeline.peak_bytes[name] <= held * 1.15
