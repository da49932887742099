"""Dry runs of code that asks for values: lengths are known, checks pass, updates are scaled somehow."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from matrix import pairs_by_tier
from run.dry.steps import OPTIMIZERS, ran
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import baechi

X = torch.ones(4, 10, 16)
LENGTHS = torch.tensor([5, 10, 7, 3])


class _Asks(nn.Module):
    """A layer, code that asks for values, and a layer."""

    def __init__(self, code: Callable[["_Asks", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.recurrent = nn.Linear(16, 16), nn.LSTM(16, 16, batch_first=True)
        self.after, self.code = nn.Linear(16, 8), code

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        after: Tensor = self.after(self.code(self, self.before(x), lengths))
        return after


def packed(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """Rows of unequal lengths."""
    rows = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    made, _ = pad_packed_sequence(model.recurrent(rows)[0], batch_first=True)
    return made


def sampled(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """A distribution checks its arguments."""
    made: Tensor = torch.distributions.Normal(x, x.exp()).rsample()
    return made


def likely(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """So does this loss."""
    return x * functional.gaussian_nll_loss(x, torch.zeros_like(x), x.exp())


def transcribed(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """The shape of what this loss keeps follows from the labels' lengths."""
    labels = torch.ones(4, 4, dtype=torch.int64)
    ends = torch.tensor([10, 10, 9, 8]), torch.tensor([4, 2, 3, 1])
    return x * functional.ctc_loss(x.transpose(0, 1).log_softmax(-1), labels, *ends)


def selected(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """One number, written where a mask of activations says."""
    made = x.clone()
    made[made < 0] = 0
    return made


def labelled(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """Torch asks for the smallest and the largest label."""
    return x + functional.one_hot(x.argmax(-1), 16)


EVERY = (packed, sampled, likely, transcribed, selected, labelled)
CODE: dict[str, Any] = {code.__name__: code for code in EVERY}
STEPS = ["sgd", "adafactor", "rprop"]


def planned(model: nn.Module) -> baechi.Plan:
    """Over two devices."""
    cluster = baechi.Cluster.virtual(2)
    graph = baechi.profile(model, (X, LENGTHS), cluster=cluster, training=True, source="estimate")
    return baechi.place(graph, cluster, "random:1")


@pytest.mark.default_cases(2)
@pytest.mark.parametrize(("name", "way"), pairs_by_tier(list(CODE), STEPS))
def test_as_it_runs(name: str, way: str) -> None:
    """Steps and peaks are those of the same steps with values."""
    model = _Asks(CODE[name])
    plan = planned(model)
    found = baechi.dry_run(model, (X, LENGTHS), plan, optimizer=OPTIMIZERS[way](model.parameters()))
    real = ran(_Asks(CODE[name]), (X, LENGTHS), plan, way)
    assert found.makespan_s == pytest.approx(real.makespan_s, rel=1e-9)
    assert dict(found.peak_bytes) == dict(real.peak_bytes)


def decides(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """The same question as a loss asks, but the answer says what is computed."""
    return x.relu() if (x < 0).any() else x


def measures(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """A number of the model's own code."""
    return x / x.norm().item()


def from_activations(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """Lengths that are not known."""
    return packed(model, x, (x[..., 0] < 9).sum(1))


def counts(model: _Asks, x: Tensor, lengths: Tensor) -> Tensor:
    """As many classes as the largest label says."""
    return x * functional.one_hot(x.argmax(-1)).sum()


@pytest.mark.parametrize("code", [decides, measures, from_activations, counts])
def test_what_decides_is_refused(code: Any) -> None:
    """Nothing is assumed of the model's own code."""
    model = _Asks(code)
    with pytest.raises(baechi.DryRunError, match="needs"):
        baechi.dry_run(model, (X, LENGTHS), planned(model), optimizer="sgd")


class _Own(torch.optim.SGD):
    """Somebody's own: it may do anything with a number."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] = max(1e-3, group["params"][0].norm().item())
        return super().step(closure)


def test_optimizers_of_others_are_refused() -> None:
    """What they do with a number is not known."""
    model = _Asks(selected)
    with pytest.raises(baechi.DryRunError, match="needs values"):
        baechi.dry_run(model, (X, LENGTHS), planned(model), optimizer=_Own(model.parameters(), lr=0.1))
