"""A view moves what it spans of its storage, not all of it; views that share memory go on sharing it."""

import copy

import torch
from torch import nn

import baechi


class Rows(nn.Module):
    """Weights are rows of a large table, which overlap; one is empty, one strided."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(1000, 8)
        self.first, self.second = nn.Parameter(table[10:16]), nn.Parameter(table[14:22])
        self.register_buffer("none", table[900:900])
        self.register_buffer("columns", table[12:14, 1::2].half())
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x) @ self.first.T
        return (x[:, :4] * self.columns[0].float()).sum() + (self.second * 2).sum()


def test_twelve_rows_of_a_thousand() -> None:
    """They need the memory of twelve, as planned, in the dry run and in the emulated one; values stay."""
    model, cluster, x = Rows(), baechi.Cluster.virtual(2, memory="1GiB"), torch.randn(3, 8)
    plain, before = copy.deepcopy(model), dict(model.state_dict())
    expected = model(x)
    graph = baechi.profile(model, x, cluster=cluster)
    assert sum(graph.amount(node, "param_bytes") for node in graph.placed()) == 12 * 32 + 72 * 4
    baechi.distribute(model, x, cluster=cluster, placer="round-robin")
    assert model.first.untyped_storage().nbytes() == 12 * 32
    assert model.first.data_ptr() + 4 * 32 == model.second.data_ptr()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with cluster:
        result = model(x)
        result.backward()
    peaks = baechi.last_step(model).peak_bytes
    assert peaks == baechi.plan_of(model).timeline.peak_bytes and sum(peaks.values()) < 4096
    plain(x).backward()
    torch.testing.assert_close(result, expected)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    with torch.no_grad():
        model.first[4:] = 7.0
    assert (model.second[:2] == 7).all()
    baechi.restore(model)
    assert model.first.untyped_storage() is model.second.untyped_storage()


def test_a_deep_copy_doubles_no_view() -> None:
    """Buffers that show one memory show one in the copy of a model on devices, as large as what they span."""
    model, table = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(1000, 8)
    model[1].register_buffer("first", table[10:16])
    model[1].register_buffer("second", table[14:22])
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    baechi.distribute(model, torch.randn(3, 8), cluster=cluster, placer="round-robin")
    copied = copy.deepcopy(model)
    first, second, own = copied[1].first, copied[1].second, model[1].second
    assert first.untyped_storage().nbytes() == own.untyped_storage().nbytes() == 12 * 32
    assert first.data_ptr() + 4 * 32 == second.data_ptr() != own.data_ptr()
    assert torch.equal(first, table[10:16]) and torch.equal(second, table[14:22])
