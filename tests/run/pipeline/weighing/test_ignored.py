"""Labels that a loss leaves out: by masks of any dtype, by any value, from any batch on."""

import copy
import logging
from collections.abc import Callable, Sequence

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F

ROWS, LENGTH, CLASSES = 16, 6, 4
X, Y = noise(ROWS, LENGTH, 5), noise(ROWS, LENGTH, CLASSES, seed=2)
MASK = torch.ones(ROWS, LENGTH)
MASK[8:, 2:] = 0
LABELS = torch.randint(0, CLASSES, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))
WHERE = {"first": 0, "last": 1}


class Tagger(nn.Module):
    """Gives scores for each place, and a loss of them."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.loss = nn.Linear(5, 8), nn.Linear(8, CLASSES), loss

    def forward(self, x: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.last(self.first(x).tanh())
        return self.loss(scores, labels) if mask is None else self.loss(scores, labels, mask)


def masked(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    return ((scores - labels).square().mean(-1) * mask).sum() / mask.sum()


def masked_but_for_the_first(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    return masked(scores[:, 1:], labels[:, 1:], mask[:, 1:])


def ignoring(value: int) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores.transpose(1, 2), labels, ignore_index=value)

    return loss


def assert_as_whole(loss: Callable[..., Tensor], batches: Sequence[tuple[Tensor, ...]]) -> None:
    """Losses and gradients of steps in microbatches are those of the whole batch."""
    model = seeded(lambda: Tagger(loss))
    plain = copy.deepcopy(model)
    cluster = pipelined(model, batches[0], microbatches=4, device_map=WHERE)
    for batch in batches:
        with cluster:
            model.zero_grad()
            found = model(*batch)
            found.backward()
        plain.zero_grad()
        expected = plain(*batch)
        expected.backward()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        assert_same_gradients(model, plain)


@pytest.mark.parametrize("loss", [masked, masked_but_for_the_first])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64, torch.bfloat16, torch.int8, torch.int64])
def test_masks_of_any_dtype(
    loss: Callable[..., Tensor], dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """A mask counts what it lets through."""
    with caplog.at_level(logging.WARNING):
        assert_as_whole(loss, [(X, Y, MASK.to(dtype))])
    assert not caplog.records


def test_amounts_weigh() -> None:
    """Weights of rows or places that are no zeros and ones."""
    assert_as_whole(masked, [(X, Y, noise(ROWS, LENGTH, seed=4).abs())])


def test_a_mask_that_is_full_at_first() -> None:
    """Then it says nothing yet."""
    assert_as_whole(masked, [(X, Y, torch.ones(ROWS, LENGTH)), (X, Y, MASK.double()), (X, Y, MASK.double())])


@pytest.mark.parametrize("value", [-100, -7, 2, CLASSES, 255])
@pytest.mark.parametrize("begins_full", [False, True])
def test_any_label_is_ignored(value: int, begins_full: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that first occurs in a later batch."""
    classes = torch.where(LABELS == value, 1, LABELS)
    ignored = torch.where(MASK.bool(), classes, value)
    with caplog.at_level(logging.WARNING):
        assert_as_whole(
            ignoring(value), [(X, labels) for labels in ([classes] * begins_full + [ignored] * 2)]
        )
    assert not caplog.records


def test_no_label_is_ignored() -> None:
    """A new label is not taken for one that is."""
    later = torch.where(MASK.bool(), LABELS, CLASSES - 1)
    assert_as_whole(ignoring(-100), [(X, LABELS.clamp(max=CLASSES - 2)), (X, later)])


def test_new_labels_are_asked_about_rarely() -> None:
    """Each batch has other words; the model is not asked about each of them."""
    words = 5000
    often = 1 / torch.arange(1, words + 1, dtype=torch.float64)
    chance, calls = torch.Generator().manual_seed(5), 0

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(scores.transpose(1, 2), labels % CLASSES)

    model = seeded(lambda: Tagger(loss))
    asked = []
    with pipelined(model, (X, LABELS), microbatches=2, device_map=WHERE):
        for _ in range(40):
            drawn = torch.multinomial(often, ROWS * LENGTH, replacement=True, generator=chance)
            before = calls
            model(X, drawn.view(ROWS, LENGTH))
            asked.append(calls - before > 2)  # a call for each microbatch is the step itself
    assert asked[0] and sum(asked[20:]) <= 5
