"""What microbatches cannot do, or cannot know, is raised or told; looking for evidence leaves no trace."""

import copy
import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from baechi.errors import BaechiError

ROWS = 32
IDS = torch.randint(1, 9, (ROWS, 6), generator=torch.Generator().manual_seed(1))
LABELS = IDS.clone()
for row in range(8, ROWS):  # the first rows, as many as are asked about, tell no rules apart
    LABELS[row, 2 + row * 7 % 4 :] = -100
WHERE = {"table": 0, "head": 1}


class Words(nn.Module):
    """Predicts labels, and returns what a function makes of logits and labels."""

    def __init__(self, returns: Callable[[nn.Module, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.table, self.head, self.returns = nn.Embedding(10, 6), nn.Linear(6, 10), returns

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        return self.returns(self, self.head(self.table(ids)), labels)


def mean(_: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), labels)


def of_next(_: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])


def of_rows(_: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return (each.sum(1) / (labels != -100).sum(1)).mean()


def in_training(model: nn.Module, logits: Tensor, labels: Tensor) -> Any:
    return {"loss": mean(model, logits, labels)} if model.training else {"scores": logits}


def several(_: nn.Module, logits: Tensor, labels: Tensor) -> Any:
    by_label = F.cross_entropy(logits.transpose(1, 2), labels)
    return {"loss_of_words": by_label, "loss_of_doubles": 2 * by_label}


def trained(model: nn.Module, labels: Tensor = LABELS, **options: Any) -> tuple[Any, Any, nn.Module]:
    """What a model in microbatches, and its twin, return; both have gone back."""
    plain = copy.deepcopy(model)
    with pipelined(model, (IDS, labels), microbatches=4, device_map=WHERE, **options):
        found = model(IDS, labels)
        expected = plain(IDS, labels)
        for result in (found, expected):
            sum(result.values() if isinstance(result, dict) else [result]).backward()
    return found, expected, plain


@pytest.mark.parametrize("returns", [mean, of_next, of_rows, in_training, several])
def test_rows_are_chosen_that_tell(returns: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Rules that the first rows do not tell apart; a loss in training only; several losses without a sum."""
    model = seeded(lambda: Words(returns))
    with caplog.at_level(logging.WARNING):
        found, expected, plain = trained(model)
    torch.testing.assert_close(found, expected)
    assert_same_gradients(model, plain)
    assert not caplog.records


def test_a_head_of_zeros_hides_no_rule(caplog: pytest.LogCaptureFixture) -> None:
    """Logits of zero give the same loss by any rule; looks are at others."""
    model = seeded(lambda: Words(of_next))
    nn.init.zeros_(model.head.weight)  # type: ignore[arg-type]
    nn.init.zeros_(model.head.bias)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        _, _, plain = trained(model)
    assert_same_gradients(model, plain)
    assert not caplog.records


def test_a_microbatch_without_labels_counts_nothing() -> None:
    """A mean over none of them is no number; that of the batch is one."""
    labels = LABELS.clone()
    labels[8:16] = -100
    model = seeded(lambda: Words(mean))
    found, expected, plain = trained(model, labels)
    torch.testing.assert_close(found, expected)
    assert_same_gradients(model, plain)


class _Counts(nn.Module):
    """A layer that counts its inputs in a buffer, in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.ones(9, 4))
        self.register_buffer("seen", torch.zeros(9))

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen += torch.bincount(ids, minlength=9)  # type: ignore[has-type]
        return self.words[ids]


class _Shifts(nn.Module):
    """Counts ids, and shifts its other inputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = _Counts(), nn.Linear(4, 4)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return (self.head(self.table(ids)) - x.sub_(1)).square().mean()


def test_looking_leaves_no_trace() -> None:
    """Buffers that are written in evaluation, too, and the caller's batch."""
    model, ids, x = seeded(_Shifts), torch.arange(8), noise(8, 4)
    plain, y = copy.deepcopy(model), x.clone()
    with pipelined(model, (ids, noise(8, 4)), microbatches=2, device_map=WHERE):
        loss = model(ids, x)
    torch.testing.assert_close(loss, plain(ids, y))
    assert torch.equal(model.table.seen, plain.table.seen) and torch.equal(x, y)


class _Forces(nn.Module):
    """Differentiates between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.head(self.table(x).tanh()).sum() + x.square().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return force.square().mean()


def test_derivatives_over_stages_are_refused() -> None:
    """A step in microbatches cuts the history, so they would be wrong."""
    model = seeded(_Forces)
    cluster = pipelined(model, noise(8, 4), microbatches=2, device_map=WHERE, loss_weights="rows")
    with (
        cluster,
        pytest.raises(BaechiError, match=r"torch\.autograd\.grad between its layers.*baechi.unsplit"),
    ):
        model(noise(8, 4))


@pytest.mark.parametrize("of_loss", [False, True])
def test_gradients_without_history_are_refused(of_loss: bool) -> None:
    """A penalty on them would train nothing, and not say so."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
    x, options = noise(8, 4).requires_grad_(), {"loss": lambda made: made.mean()} if of_loss else {}
    cluster = pipelined(model, noise(8, 4), microbatches=2, device_map={"0": 0, "1": 0, "2": 1}, **options)
    with cluster, pytest.raises(BaechiError, match=r"create_graph=True.*baechi.unsplit"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with cluster:
        model(noise(8, 4)).sum().backward()


def test_no_use_of_an_output_that_is_not_joined() -> None:
    """Every operator says why."""
    model = seeded(lambda: Words(lambda _, logits, labels: {"scores": logits, "best": logits.norm()}))
    with pipelined(model, (IDS, LABELS), microbatches=4, device_map=WHERE):
        best = model(IDS, LABELS)["best"]
    uses: list[Callable[[], object]] = [
        lambda: sum([best]), lambda: 2 * best, lambda: best / 2, lambda: -best, lambda: best > 0,
        lambda: f"{best:.3f}",
    ]  # fmt: skip
    assert f"{best}" == "<best: tensor of shape () of each microbatch, not joined>"
    for use in uses:
        with pytest.raises(
            BaechiError, match=r"best is a tensor of shape .* nothing says how these are joined"
        ):
            use()


def test_nor_by_a_function_of_torch_or_of_python() -> None:
    """Not compared in silence, nor pickled: neither is an answer."""
    model = seeded(lambda: Words(lambda _, logits, labels: {"scores": logits, "best": logits.norm()}))
    with pipelined(model, (IDS, LABELS), microbatches=4, device_map=WHERE):
        best = model(IDS, LABELS)["best"]
    uses: list[Callable[[], object]] = [
        lambda: best == 1, lambda: best != best, lambda: 1 in [best], lambda: pickle.dumps(best),
        lambda: copy.deepcopy(best), lambda: torch.stack([best]), lambda: torch.nn.functional.relu(best),
        lambda: torch.ones(2) + best, lambda: best.item(), lambda: best[0], lambda: best // 2,
        lambda: numpy.asarray(best), lambda: torch.save(best, io.BytesIO()),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(BaechiError, match=r"nothing says how these are joined.*baechi\.unsplit"):
            use()
