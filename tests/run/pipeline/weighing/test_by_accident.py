"""Rules that fit by accident are not taken for true: losses that no rule gives are refused."""

import copy
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi.errors import BatchCoupled

WEIGHTS = torch.tensor([0.1, 3.0, 1.0], dtype=torch.float64)
WHERE = {"first": 0, "last": 1}


class Classifier(nn.Module):
    """Scores of rows, and a loss of them."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], classes: int = 3) -> None:
        super().__init__()
        self.first, self.last, self.loss = nn.Linear(8, 8), nn.Linear(8, classes), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.last(self.first(x).tanh()), y)


def classes(rows: int, count: int = 3, seed: int = 0) -> Tensor:
    return torch.randint(0, count, (rows,), generator=torch.Generator().manual_seed(seed))


def each_of(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores, y, reduction="none")


def weighed(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores, y, weight=WEIGHTS)


def hardest(scores: Tensor, y: Tensor) -> Tensor:
    return each_of(scores, y).max()


def hard(scores: Tensor, y: Tensor) -> Tensor:
    return each_of(scores, y).topk(max(1, len(y) // 2))[0].mean()


def of_positives(scores: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, y, reduction="sum") / y.sum().clamp(min=1)


def alike(y: Tensor) -> Tensor:
    return (y[:, None] == y[None]) & ~torch.eye(len(y), dtype=torch.bool)


def contrasted(scores: Tensor, y: Tensor) -> Tensor:
    rows = F.normalize(scores, dim=-1)
    near = (rows @ rows.T).masked_fill(torch.eye(len(y), dtype=torch.bool), -1e9)
    return -((near - near.logsumexp(1, keepdim=True)) * alike(y)).sum() / alike(y).sum().clamp(min=1)


def centered(scores: Tensor, y: Tensor) -> Tensor:
    return scores.square().mean() + ((scores[:, None] - scores).square().sum(-1) * alike(y)).sum() / len(y)


def in_range(scores: Tensor, y: Tensor) -> Tensor:
    """As heads that answer questions: positions beyond the end are ignored, whatever they are."""
    return F.cross_entropy(scores, y.clamp(max=scores.shape[1]), ignore_index=scores.shape[1])


def positive(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores, torch.where(y < 0, -100, y))


def steps(
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
    microbatches: int = 4,
    **options: Any,
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """For each batch the loss in microbatches, and that of the whole batch, each with its gradients."""
    count = batches[0][1].shape[1] if batches[0][1].dim() > 1 else 3
    model = seeded(lambda: Classifier(loss, count))
    plain, found = copy.deepcopy(model), []
    with pipelined(model, batches[0], microbatches=microbatches, device_map=WHERE, **options):
        for batch in batches:
            both = []
            for network in (model, plain):
                network.zero_grad()
                made = network(*batch)
                made.backward()
                both.append([made.detach(), *(weight.grad.clone() for weight in network.parameters())])
            found.append((both[0], both[1]))
    return found


def assert_right(found: list[tuple[list[Tensor], list[Tensor]]]) -> None:
    """A batch by chance has parts that give what the whole gives."""
    for mine, whole in found:
        torch.testing.assert_close(mine, whole)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", [hardest, hard])
def test_losses_of_hard_examples(loss: Callable[[Tensor, Tensor], Tensor], seed: int) -> None:
    """The largest of two losses is one of them, as if the other's label were ignored."""
    with suppress(BatchCoupled):
        assert_right(steps(loss, [(noise(8, 8, seed=seed), classes(8, seed=seed))]))


def test_auto_takes_one_for_them(caplog: pytest.LogCaptureFixture) -> None:
    """Each microbatch has a row, or a few."""
    model = seeded(lambda: Classifier(hardest))
    batch = {"x": noise(8, 8), "y": classes(8)}
    with caplog.at_level(logging.WARNING):
        baechi.distribute(model, batch, cluster=baechi.Cluster.virtual(2), microbatches="auto")
    assert getattr(baechi.plan_of(model), "microbatches", 1) == 1


@pytest.mark.parametrize("seed", range(5))
def test_sums_over_the_batchs_positives(seed: int) -> None:
    """Few rows have any, so a sum seems to be one of losses."""
    chance = torch.rand(8, 3, generator=torch.Generator().manual_seed(seed))
    with suppress(BatchCoupled):
        assert_right(steps(of_positives, [(noise(8, 8), (chance < 0.25).double())]))


@pytest.mark.parametrize("loss", [contrasted, centered])
def test_labels_that_rows_share_couple_them(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The first rows have other labels each."""
    with suppress(BatchCoupled):
        assert_right(steps(loss, [(noise(12, 8), torch.arange(12) % 4)]))


@pytest.mark.parametrize(
    ("loss", "labels"),
    [(in_range, [1, 2, 50, 0, 8, 0]), (positive, [0, -1, 2, -2, 1, 0]), (positive, [0, 1, 2, -2, -1, 0])],
)
def test_several_labels_are_ignored(loss: Callable[[Tensor, Tensor], Tensor], labels: list[int]) -> None:
    """One of them alone is not the rule."""
    with suppress(BatchCoupled):
        assert_right(steps(loss, [(noise(6, 8), torch.tensor(labels))], 3))


@pytest.mark.parametrize("first", [torch.zeros(8, dtype=torch.int64), classes(8)])
def test_no_class_is_left_out(first: Tensor) -> None:
    """Weights of classes couple rows; the class that weighs least is not ignored."""
    later = [torch.full((8,), label) for label in range(3)]
    batches = [(noise(8, 8), y) for y in (first, classes(8, seed=2), *later)]
    with pytest.raises(BatchCoupled):
        steps(weighed, batches)
    for mine, whole in steps(weighed, batches, coupled="accept")[2:]:
        torch.testing.assert_close(mine, whole)


@pytest.mark.parametrize("seed", range(4))
def test_every_row_gets_a_gradient(seed: int) -> None:
    """Also where most rows are of the class that weighs least."""
    y = (torch.arange(32) % 8 == 0).long()
    x = noise(32, 8, seed=seed).requires_grad_()
    model = seeded(lambda: Classifier(weighed))
    with pipelined(model, (x, y), microbatches=4, device_map=WHERE, coupled="accept"):
        for labels in (y, y.sort()[0], torch.zeros_like(y)):
            x.grad = None
            model(x, labels).backward()
            assert x.grad is not None and bool((x.grad.abs().sum(1) > 0).all())


@pytest.mark.parametrize("labels", [[0, 1, 1, 0], [1, 0, 1, 2, 0, 2, 2, 1]])
def test_a_label_that_is_ignored_as_often_in_each_microbatch(
    labels: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Rows would do for the batch, and not for the few rows that are asked about: nothing is coupled."""

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores, y, ignore_index=0)

    with caplog.at_level(logging.WARNING):
        ((mine, whole),) = steps(loss, [(noise(len(labels), 8), torch.tensor(labels))], 2)
    assert not caplog.records
    torch.testing.assert_close(mine, whole)


def test_targets_that_are_not_known_later(caplog: pytest.LogCaptureFixture) -> None:
    """NaN among targets is asked about when it first occurs: a mean over those that are known."""
    full, x = noise(8, 3, seed=2), noise(8, 8)
    holes = full.clone()
    holes[0, 1:] = holes[4, :2] = holes[6, 2] = torch.nan

    def known(scores: Tensor, y: Tensor) -> Tensor:
        there = ~y.isnan()
        return F.mse_loss(scores[there], y[there])

    with caplog.at_level(logging.WARNING):
        found = steps(known, [(x, full), (x, holes), (x, full), (x, holes)])
    assert not caplog.records
    for mine, whole in found:
        torch.testing.assert_close(mine, whole)
