"""A rule of the clock is written once: where one function says otherwise, all that predicts steps follows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import baechi
from baechi.cost.transfer import transfer_s
from baechi.place.problem import Problem
from baechi.place.search.estimate import NEVER, Placement, Times, estimate
from baechi.place.search.tables import Tables
from baechi.records import Cluster, LayerGraph, Link, Plan

FAST = Cluster.parse("3xA100-80GB", link="pcie")
SLOW = replace(FAST, link=Link(2 * FAST.link.latency_s, FAST.link.bytes_per_s / 2))
"""Twice the seconds of a transfer: to the last bit, since a factor of two is exact."""

MICROBATCHES = 4


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]) for _ in range(2))
        self.head = nn.Linear(2048, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.left(x), self.right(x)], 1)).mean()


def doubled_s(link: Link, size_bytes: float) -> float:
    return 2 * (link.latency_s + size_bytes / link.bytes_per_s)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.device("meta"):
        return Towers().train()


@pytest.fixture(scope="module")
def graph(model: nn.Module) -> LayerGraph:
    return baechi.profile(model, batch(), cluster=FAST, training=True, source="estimate")


def batch() -> torch.Tensor:
    return torch.empty(4096, 1024, device="meta")


def plan_on(cluster: Cluster, graph: LayerGraph) -> Plan:
    return Plan(graph, cluster, {name: cluster.names["right" in name] for name in graph.placed()})


Predicted = Callable[[Cluster, nn.Module, LayerGraph], float]


def emulated(cluster: Cluster, model: nn.Module, graph: LayerGraph) -> float:
    return baechi.dry_run(model, batch(), plan_on(cluster, graph)).makespan_s


def simulated(cluster: Cluster, model: nn.Module, graph: LayerGraph) -> float:
    return baechi.simulate(plan_on(cluster, graph)).makespan_s


def pipelined(cluster: Cluster, model: nn.Module, graph: LayerGraph) -> float:
    one = baechi.profile(
        model, batch(), cluster=FAST, training=True, source="estimate", microbatches=MICROBATCHES
    )
    return baechi.simulate(baechi.pipeline(plan_on(cluster, one), MICROBATCHES)).makespan_s


def searched(cluster: Cluster, model: nn.Module, graph: LayerGraph) -> float:
    problem, plan = Problem(graph, cluster), plan_on(cluster, graph)
    devices = [cluster.names.index(plan.device_of[name]) for name in problem.indexed.names]
    tables = Tables.of(problem)
    in_code_order = Placement(np.array(devices), np.array([]), np.arange(len(devices)))
    return float(estimate(tables, Times.of(tables), in_code_order, NEVER))


@pytest.mark.parametrize("predicted", [emulated, simulated, pipelined, searched])
def test_all_follow_one_rule(
    predicted: Predicted, model: nn.Module, graph: LayerGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = predicted(FAST, model, graph), predicted(SLOW, model, graph)
    monkeypatch.setattr(transfer_s, "__code__", doubled_s.__code__)  # wherever it was imported to
    assert predicted(FAST, model, graph) == slow != fast
