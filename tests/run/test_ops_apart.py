"""Functional ops on devices of their own make the step shorter: as predicted, and on the emulated cluster."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from same import ROUNDING, assert_same, step
from torch import Tensor, nn

import baechi
from baechi.place import find
from baechi.records.timeline import Timeline

WIDE, ROWS = 64, 8192


class Branches(nn.Module):
    """Layers on devices of their own, and a function of what they return, which the last layer reads."""

    def __init__(self, join: Callable[..., Tensor], last: int, branches: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(WIDE, WIDE) for _ in range(branches)])
        self.last = nn.Linear(last, WIDE)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.join(*[branch(x) for branch in self.branches]))
        return out


def outer(one: Tensor, other: Tensor) -> Tensor:
    """Products of eight numbers of each, a row: as small inputs as there are, and a larger output."""
    return (one[:, :16, None] * other[:, None, :16]).flatten(1)


def gated(one: Tensor, other: Tensor, gate: Tensor) -> Tensor:
    """Three ops in a row, which only gain together."""
    return torch.cat([one * gate, other * gate, one + other], 1)


EXAMPLES: dict[str, tuple[Callable[..., Tensor], int, int]] = {
    "cat": (lambda *parts: torch.cat(parts, 1), 2 * WIDE, 2),
    "sum": (lambda one, other: one + other, WIDE, 2),
    "cat of three": (lambda *parts: torch.cat(parts, 1).relu(), 3 * WIDE, 3),
    "outer product": (outer, 256, 2),
    "several": (gated, 3 * WIDE, 3),
}


def emulated(build: Callable[[], nn.Module], plan: baechi.Plan, inputs: dict[str, Any]) -> Timeline:
    """The second step on the emulated cluster, with the numbers of the plain model."""
    plain, model = build(), baechi.assign(build(), plan)
    for _ in range(2):
        expected = step(plain, inputs, training=True)
        with plan.cluster:
            result = step(model, inputs, training=True)
        assert_same(expected, result, tolerance=ROUNDING)
    return baechi.last_step(model)


@pytest.mark.parametrize("name", EXAMPLES)
def test_they_gain(name: str) -> None:
    """The last layer's device takes over what its inputs are made by; layers stay where they were."""
    join, last, branches = EXAMPLES[name]
    build = seeded(lambda: Branches(join, last, branches))
    cluster, inputs = baechi.Cluster.virtual(branches + 1), {"x": noise(ROWS, WIDE)}
    graph = baechi.profile(build(), inputs, cluster=cluster, training=True, source="estimate")
    for number, device in enumerate(cluster.names[:-1]):
        graph.nodes[f"branches.{number}"]["pin"] = device
    graph.nodes["last"]["pin"] = cluster.names[-1]
    by_rule, placed = find("m-etf")(graph, cluster), baechi.place(graph, cluster, "m-etf")
    assert placed.timeline.makespan_s < 0.99 * by_rule.timeline.makespan_s
    slow, fast = emulated(build, by_rule, inputs), emulated(build, placed, inputs)
    assert fast.makespan_s < 0.99 * slow.makespan_s
    assert fast.makespan_s == pytest.approx(placed.timeline.makespan_s, rel=0.1)
    assert fast.counters["transfer_bytes"] <= slow.counters["transfer_bytes"]
    auto = baechi.place(graph, cluster)
    assert auto.timeline.makespan_s <= placed.timeline.makespan_s
