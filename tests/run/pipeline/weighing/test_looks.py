"""What the model is asked about: its loss of training; small terms that couple rows; looks that fail."""

import copy
import logging
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from baechi.errors import BatchCoupled

X, Y = noise(8, 4), noise(8, 4, seed=2)
WHERE = {"first": 0, "last": 1}


class Net(nn.Module):
    """Two layers with a loss; what is asked of it besides is in classes below."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return F.mse_loss(self.last(self.first(x).tanh()), y)


def raises_if(couples: bool) -> Any:
    return pytest.raises(BatchCoupled) if couples else nullcontext()


class Balanced(Net):
    """A term that couples rows, always or in training only, beside a layer that draws in training."""

    def __init__(
        self, coefficient: float, dtype: torch.dtype = torch.float64, *, always: bool = False
    ) -> None:
        super().__init__()
        self.coefficient, self.dtype, self.always = coefficient, dtype, always
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        loss = super().forward(self.dropout(x), y).to(self.dtype)
        chosen = self.first(x).softmax(-1).mean(0)
        return loss + self.coefficient * 4 * chosen.square().sum().to(self.dtype) * (
            self.training or self.always
        )


@pytest.mark.parametrize(("coefficient", "couples"), [(1.0, True), (0.0, False)])
def test_a_loss_of_training_is_asked_about(coefficient: float, couples: bool) -> None:
    """Its own code is looked at in training, though a loss is there in evaluation, too."""
    model = seeded(lambda: Balanced(coefficient))
    with pipelined(model, (X, Y), device_map=WHERE), raises_if(couples):
        model(X, Y).backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_small_term_that_couples_rows_is_told(dtype: torch.dtype) -> None:
    """Parts are off by less than a ten thousandth of the loss."""
    model = seeded(lambda: Balanced(1e-3, dtype, always=True))
    with pipelined(model, (X, Y), device_map=WHERE), raises_if(True):
        model(X, Y).backward()


class Rough(Net):
    """Its loss is a little off, otherwise for four rows than for two, as kernels for other sizes round."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return super().forward(x, y).float() * (1 + 5e-6 * (len(x) == 4))


def test_rounding_of_the_model_is_no_coupling() -> None:
    """Where it computes with 32 bits, a look measures by how much it rounds."""
    model = seeded(Rough)
    with pipelined(model, (X, Y), microbatches=2, device_map=WHERE):
        model(X, Y).backward()


class Words(nn.Module):
    """Predicts labels; its loss raises if one is unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(10, 6), nn.Linear(6, 10)

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        return F.cross_entropy(self.last(self.first(ids)).transpose(1, 2), labels)


def test_nothing_is_kept_of_a_look_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    """A bad first batch raises as in the step itself; the next one tells how losses count."""
    ids = torch.randint(1, 9, (8, 6), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:3, 2:] = -100
    bad = labels.clone()
    bad[:, 0] = 99
    model = seeded(Words)
    plain = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING), pipelined(model, (ids, labels), device_map=WHERE):
        with pytest.raises(IndexError, match="99 is out of bounds"):
            model(ids, bad)
        found = model(ids, labels)
        found.backward()
    expected = plain(ids, labels)
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert_same_gradients(model, plain)
    assert "were not judged beside the whole" in caplog.text


class Squeezed(Net):
    """Leaves out all dimensions of one: that of a single row, too."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.last(self.first(x))[:, :1].squeeze()


def test_outputs_without_a_dimension_for_one_row() -> None:
    """A few rows are asked about one by one; microbatches have two."""
    model = seeded(Squeezed)
    plain = copy.deepcopy(model)
    with pipelined(model, (X, Y), microbatches=4, device_map=WHERE):
        F.mse_loss(model(X, Y), Y[:, 0]).backward()
    F.mse_loss(plain(X, Y), Y[:, 0]).backward()
    assert_same_gradients(model, plain)


class Leaves(nn.Linear):
    """Leaves traces in training: a buffer, a count, a list, and numbers drawn."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.calls, self.kept, self.own = 0, list[int](), torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean += x.mean(0)  # type: ignore[has-type]
            self.calls += 1
            self.kept.append(len(x))
            x = x + torch.rand(4) + torch.rand(4, generator=self.own)
        return super().forward(x)


class Traces(Net):
    """Its first layer leaves traces; it writes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Leaves()

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return super().forward(x.mul_(2), y)


def test_looking_in_training_leaves_no_trace() -> None:
    """The step of a model that was looked at ends as that of one whose weights were said."""
    left = []
    for options in ({}, {"loss_weights": "rows"}):
        model, x = seeded(Traces), X.clone()
        with pipelined(model, (X.clone(), Y), microbatches=2, device_map=WHERE, **options):
            torch.manual_seed(3)
            loss = model(x, Y)
        state = torch.get_rng_state()
        left.append(
            (
                loss,
                vars(model.first)["calls"],
                model.first.kept,
                model.first.mean,
                model.first.own.get_state(),
                state,
                x,
            )
        )
    torch.testing.assert_close(*left)
