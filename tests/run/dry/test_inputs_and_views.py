"""Dry runs where a tensor changes its shape in place, or is given twice."""

from collections.abc import Callable

import pytest
import torch
from run.dry.steps import ran
from run.dry.test_dry_run import dry, planned
from torch import Tensor, nn
from torch.nn import functional as F


class _Turned(nn.Module):
    """Changes in place how an activation sees its memory."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.change = nn.Linear(6, 6), nn.Linear(6, 6), change

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.change(self.first(x) * 2)).sum()


class _Recurrent(nn.Module):
    """A recurrent layer whose batch comes first: torch turns its output in place."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(9, 6), kind(6, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.words(ids))[0]).sum()


class _Twice(nn.Module):
    """Is given its labels as inputs, as causal language models are."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.words(ids)).transpose(1, 2), labels)


IDS = torch.arange(4000).remainder(9).view(4, 1000)


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (lambda: _Turned(lambda h: h.t_()), (torch.ones(6, 6),)),
        (lambda: _Turned(lambda h: h.transpose_(0, 1)), (torch.ones(6, 6),)),
        (lambda: _Turned(lambda h: h.unsqueeze_(0).squeeze_(0)), (torch.ones(4, 6),)),
        (lambda: _Recurrent(nn.GRU), (IDS[:, :5],)),
        (lambda: _Recurrent(nn.RNN), (IDS[:, :5],)),
        (lambda: _Recurrent(nn.LSTM), (IDS[:, :5],)),
        (_Twice, (IDS, IDS)),
        (_Twice, (IDS, IDS.clone())),
    ],
    ids=["t_", "transpose_", "unsqueeze_", "gru", "rnn", "lstm", "given twice", "given once"],
)
@pytest.mark.parametrize("placer", ["single", "random:1"])
def test_as_with_values(build: Callable[[], nn.Module], inputs: tuple[Tensor, ...], placer: str) -> None:
    """Steps and peaks of a dry run are those with values."""
    plan = planned(build(), inputs, 2, placer, training=True)
    found, expected = dry(build(), inputs, plan, "sgd"), ran(build(), inputs, plan, "sgd")
    assert found.makespan_s == pytest.approx(expected.makespan_s, rel=1e-9)
    assert found.peak_bytes == expected.peak_bytes
