"""Inputs of another batch share what the inputs share."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from baechi.records import Inputs
from baechi.torchlib.tensors.storage import storage_object
from baechi.verbs.batches import (
    batch_on_meta,
    batch_size,
    fitting_batches,
    largest_that_fits,
    resized_batch,
)

X = torch.arange(10).view(2, 5)


@pytest.mark.parametrize("resize", [resized_batch, batch_on_meta])
def test_what_shares_memory_still_does(resize: Callable[..., Inputs]) -> None:
    """A tensor given twice is one; views of one are views of one; what has no batch stays as it is."""
    alone, mask = torch.ones(2, 3), torch.ones(3)
    found = resize(Inputs(X, X[:, :-1], labels=X, later=X[:, 1:], rest=[alone, mask]), 2, 7)
    whole, first = found.args
    assert found.kwargs["labels"] is whole and found.kwargs["rest"][1] is mask
    assert all(storage_object(t) is storage_object(whole) for t in (first, found.kwargs["later"]))
    assert [t.shape for t in (whole, first, found.kwargs["later"])] == [(7, 5), (7, 4), (7, 4)]
    assert found.kwargs["rest"][0].shape == (7, 3)
    assert storage_object(found.kwargs["rest"][0]) is not storage_object(whole)


@pytest.mark.parametrize(
    ("tensor", "other"),
    [(X, X[:, 1:]), (X.t().contiguous().t(), X), (X[:, 1:], X.t()[:2]), (X[:2], X[:2, 3:])],
)
def test_rows_are_repeated_or_left_out(tensor: Tensor, other: Tensor) -> None:
    """Of views, too; transposed ones share nothing afterwards, and have the same values."""
    found = resized_batch(Inputs(tensor, other), 2, 5)
    assert [rows(t) for t in found.args] == [rows(t[torch.arange(5) % 2]) for t in (tensor, other)]
    assert rows(resized_batch(Inputs(tensor, other), 2, 1).args[0]) == rows(tensor[:1])


def rows(tensor: Tensor) -> list[list[int]]:
    listed: list[list[int]] = tensor.tolist()
    return listed


def test_odd_inputs() -> None:
    """Tensors without a size, sparse ones, ones that require a gradient."""
    sparse, trained = torch.eye(2).to_sparse(), torch.ones(2, 3, requires_grad=True)
    given = Inputs(torch.tensor(1.0), sparse, trained, trained[:, 1:])
    assert batch_size(given) == 2 and batch_size(Inputs(1, torch.tensor(2))) is None
    found = resized_batch(given, 2, 4)
    assert [tuple(t.shape) for t in found.args] == [(), (4, 2), (4, 3), (4, 2)]


@pytest.mark.parametrize("largest", [0, 1, 2, 7, 23, 1000, 2**24])
@pytest.mark.parametrize("wrong_by", [0.5, 0.97, 1.0, 1.1, 3.0])
@pytest.mark.parametrize("idle", [0, 10**6])
def test_the_largest_is_found(largest: int, wrong_by: float, idle: int) -> None:
    """However wrong the simulation was; with what stays idle where a batch fits, or nothing."""
    tried = []

    def spare_bytes(batch: int) -> int:
        tried.append(batch)
        return (largest - batch) * 900 + (idle if batch <= largest else 0)

    about = fitting_batches(lambda batch: round((largest / wrong_by - batch) * 1000))
    nearest = about[-1][0] if about else 0
    assert nearest <= largest / wrong_by <= max(nearest + 1, 1.01 * nearest) or nearest == 2**24
    assert largest_that_fits(spare_bytes, about) == largest
    assert len(tried) == len(set(tried)) <= 2 * 24
