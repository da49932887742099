"""The simulator beside the run, where the code takes views and torch takes fused paths."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import baechi


class _Steps(nn.Module):
    """A cell that reads slices of an embedding, one a step."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.cell = nn.GRUCell(64, 32)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.zeros(len(ids), 32)
        for step in self.embedding(ids).unbind(1):
            hidden = self.cell(step, hidden)
        return hidden


class _Chunks(nn.Module):
    """Slices of one projection, read elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(32, 96)
        self.left, self.right = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, values: Tensor) -> Tensor:
        query, key, gate = self.all(values).chunk(3, dim=-1)
        return torch.cat([self.left(query), self.right(key), gate])


class _Attention(nn.Module):
    """Attention that torch computes in one kernel where nothing is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(32, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.after = nn.Linear(32, 32)

    def forward(self, values: Tensor) -> Tensor:
        values = self.before(values)
        attended: Tensor = self.attention(values, values, values, need_weights=False)[0]
        return self.after(attended)


@pytest.mark.parametrize(
    ("build", "batch"),
    [
        (_Steps, torch.arange(40).view(4, 10)),
        (_Chunks, torch.ones(8, 32)),
        (_Attention, torch.ones(4, 16, 32)),
    ],
    ids=["steps", "chunks", "attention"],
)
def test_as_it_runs(build: Callable[[], nn.Module], batch: Tensor) -> None:
    """Steps within 5 %, peaks not below the run's and at most 15 % above, for inference on two devices."""
    torch.manual_seed(0)
    model = build().eval()
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="A100-80GB")
    graph = baechi.profile(model, batch, cluster=cluster, training=False, source="estimate")
    plan = baechi.place(graph, cluster, "random:1")
    assert plan.timeline is not None
    assert len(set(plan.device_of.values())) == 2
    run = baechi.dry_run(model, batch, plan)
    assert run.makespan_s == pytest.approx(plan.timeline.makespan_s, rel=0.05)
    for name in cluster.names:
        assert run.peak_bytes[name] <= plan.timeline.peak_bytes[name] <= 1.15 * run.peak_bytes[name]
