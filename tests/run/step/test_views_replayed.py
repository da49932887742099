"""A view of a tensor that was written has the autograd nodes that capture saw, whichever thread runs code."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from run.launched import LAUNCHERS
from run.pipeline.nets import noise, seeded
from torch import Tensor, nn
from torch.autograd.graph import Node

import baechi


class Slices(nn.Module):
    """It writes a part of what its layers make: in a layer, and in its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.aside, self.last = nn.Linear(6, 8), Inside(), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.first(x)
        left, right = wide[:, :4], wide[:, 4:]
        left[:, 0] = 2.0
        made: Tensor = self.aside(right.tanh()) + self.last(left.sigmoid())
        return made


class Inside(nn.Module):
    """A layer, since it has a weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 12))

    def forward(self, x: Tensor) -> Tensor:
        half = (made := x @ self.weight)[:, 6:]
        made[:, 8].mul_(0.5)
        return half.sigmoid()


def nodes(value: Tensor) -> Iterator[str]:
    """The names of all nodes behind a tensor."""
    stack: list[Node | None] = [value.grad_fn]
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [before for before, _ in node.next_functions]
            yield node.name()


def on_two(model: nn.Module, x: Tensor, **options: Any) -> baechi.Plan:
    """Distribute over two emulated devices; the plan as it was predicted without a run."""
    cluster = baechi.Cluster.virtual(2)
    graph = baechi.profile(model, x, cluster=cluster, training=True, source="estimate")
    plan = baechi.Plan.from_device_map(graph, cluster, {"aside": 1, "": 0})
    baechi.distribute(model, plan=plan, **options)
    return plan


@pytest.mark.parametrize("reorder", [False, *LAUNCHERS])
def test_views_are_replayed_and_gradients_are_the_same(reorder: Any) -> None:
    model, plain, x = seeded(Slices), seeded(Slices), noise(3, 6)
    cluster = on_two(model, x, reorder=reorder).cluster
    expected = plain(x)
    assert "AsStridedBackward0" in nodes(expected)
    expected.sum().backward()
    with cluster:
        for _ in range(3):
            model.zero_grad()
            found = model(x)
            assert "AsStridedBackward0" not in nodes(found)
            found.sum().backward()
    for weight, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert weight.grad is not None and other.grad is not None
        assert torch.equal(weight.grad, other.grad)
    assert "AsStridedBackward0" in nodes(plain(x))  # outside of steps nothing has changed


def test_a_step_is_predicted_where_code_writes_parts() -> None:
    """The simulator counts what capture saw of backward."""
    model, x = seeded(Slices), noise(3, 6)
    plan = on_two(model, x)
    with plan.cluster as cluster:
        for _ in range(2):
            cluster.emulation.synchronize()
            model.zero_grad()
            model(x).sum().backward()
        run = cluster.emulation.timeline()
    assert run.makespan_s == pytest.approx(plan.timeline.makespan_s, rel=0.01)
