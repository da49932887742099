"""Steps side by side: each way runs the same placement in its own manner, with the same numbers."""

import pytest
import torch
from torch import nn

import baechi
from baechi.records.cluster import HOST
from benches import steps
from benches.models.clusters import Setting
from benches.models.runnable import Runnable
from benches.steps import naively, on_cpu
from benches.truth import emulated


class Towers(nn.Module):
    """Two towers on one stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(512, 512)
        self.left, self.right = (nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        left: torch.Tensor = self.left(x)
        return left * self.right(x)


def test_naive_is_a_plain_device_map() -> None:
    """The same numbers, but the stem's output leaves when the code asks for it, after the left tower."""
    cluster = baechi.Cluster.virtual(2, like="L4")
    x = torch.randn(256, 512)
    graph = baechi.profile(Towers(), x, cluster=cluster, source="estimate")
    plan = baechi.Plan.from_device_map(graph, cluster, {"": 0, "right": 1})
    runnable = Runnable("towers", Towers, lambda: (x,))
    naive, ours = (emulated(plan, runnable, "sgd", run=run) for run in (naively, baechi.assign))
    assert naive.counters["transfers"] == ours.counters["transfers"]
    assert naive.makespan_s > 1.2 * ours.makespan_s
    torch.manual_seed(0)
    model = Towers()
    expected = model(x)
    assert torch.equal(naively(model, plan)(x), expected)


def test_the_same_devices_emulated() -> None:
    """Other names; everything else, the host's links among it, is as it was."""
    cluster = Setting(2, "PCIe", equal=False, roomy=True).cluster(1000)
    same = on_cpu(cluster)
    assert same.emulated and same.names == ("cpu:0", "cpu:1")
    for old, new in zip(cluster.names, same.names, strict=True):
        assert same.link_between(HOST, new) == cluster.link_between(HOST, old)
        assert same.device(new).flops_per_s == cluster.device(old).flops_per_s


def test_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each small model; no way is faster than the plan's by more than rounding of clocks."""
    rows = list(steps.steps(quick=True))
    assert [row.model for row in rows] == ["inception-v3", "gnmt", "transformer"]
    for row in rows:
        found = {way: step_s for way, step_s in row.steps_s.items() if step_s is not None}
        assert found["auto"] <= 1.01 * min(found.values()), row
    shown = steps.table(rows)
    assert shown.row_count == 3
