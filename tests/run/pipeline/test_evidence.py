"""What the losses of microbatches count: by evidence; coupled losses are told; results that no rule joins."""

import contextlib
import copy
import logging
import warnings
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

import baechi
from baechi.errors import BaechiError, BatchCoupled

IDS = torch.randint(1, 9, (8, 5), generator=torch.Generator().manual_seed(1))
LABELS = IDS.clone()
LABELS[0, 1:] = LABELS[5, 3:] = -100
PADDED = LABELS.clamp(min=0)
WHERE = {"table": 0, "head": 1}


class Words(nn.Module):
    """Predicts labels; how its loss counts them is said."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.table, self.head, self.how = nn.Embedding(10, 6), nn.Linear(6, 10), how

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.table(ids))
        if self.how == "next":
            logits, labels = logits[:, :-1], labels[:, 1:]
        ignored, reduction = {"padding": (0, "mean"), "sum": (-100, "sum")}.get(self.how, (-100, "mean"))
        each = logits.transpose(1, 2), labels
        if self.how == "rows":
            kept = labels != -100
            losses = F.cross_entropy(*each, ignore_index=-100, reduction="none")
            return (losses.sum(1) / kept.sum(1).clamp(min=1)).mean()
        loss = F.cross_entropy(*each, ignore_index=ignored, reduction=reduction)
        if self.how == "coupled":
            loss = loss + (logits.mean((1, 2)) @ logits.mean((1, 2))).square()
        return loss


@pytest.mark.parametrize("how", ["same", "next", "padding", "sum", "rows"])
def test_the_loss_is_that_of_the_batch(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Means over labels, from the second on, of other than padding; sums; means over rows: none is told."""
    model = seeded(lambda: Words(how))
    plain = copy.deepcopy(model)
    batch = {"ids": IDS, "labels": PADDED if how == "padding" else LABELS}
    cluster = pipelined(model, batch, device_map=WHERE)
    with caplog.at_level(logging.WARNING), cluster:
        loss = model(**batch)
        loss.backward()
    expected = plain(**batch)
    expected.backward()
    assert torch.allclose(loss, expected, rtol=1e-12)
    assert_same_gradients(model, plain)
    assert not caplog.records


def test_rules_are_asked_again_when_they_disagree() -> None:
    """A first batch without ignored labels says nothing; the first one with some does."""
    model = seeded(lambda: Words("next"))
    plain = copy.deepcopy(model)
    cluster = pipelined(model, {"ids": IDS, "labels": IDS}, device_map=WHERE)
    for labels in (IDS, LABELS, LABELS):
        with cluster:
            loss = model(IDS, labels)
        assert torch.allclose(loss, plain(IDS, labels), rtol=1e-12)


def test_a_coupled_loss_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """With both figures, before anything trains; what the user says holds."""
    model = seeded(lambda: Words("coupled"))
    cluster = pipelined(model, {"ids": IDS, "labels": LABELS}, device_map=WHERE)
    with cluster:
        for _ in range(3):
            with pytest.raises(BatchCoupled, match=r"of the whole batch, and .* from 3 microbatches"):
                model(IDS, LABELS)
    model = seeded(lambda: Words("coupled"))
    cluster = pipelined(model, {"ids": IDS, "labels": LABELS}, device_map=WHERE, coupled="accept")
    with caplog.at_level(logging.WARNING), cluster:
        for _ in range(2):
            model(IDS, LABELS).backward()
    assert caplog.text.count("accepted") == 1
    said = seeded(lambda: Words("sum"))
    cluster = pipelined(
        said,
        {"ids": IDS, "labels": LABELS},
        device_map=WHERE,
        loss_weights=lambda parts: [0.0, 0.0, 1.0],
        coupled="accept",
    )
    with cluster:
        assert torch.allclose(said(IDS, LABELS), seeded(lambda: Words("sum"))(IDS[6:], LABELS[6:]))


class Returns(nn.Module):
    """It returns rows, a scalar that is no loss, text and an object."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: Tensor) -> Any:
        rows = self.last(self.first(x)) * scale
        return {"rows": (rows, rows[:, 0]), "norm": rows.norm(), "kind": "test", "cache": object()}


def test_what_is_joined() -> None:
    """Rows are; equal values stay; anything else raises when it is read, and names itself."""
    model = seeded(Returns)
    plain = copy.deepcopy(model)
    x, scale = noise(7, 4), noise(4, seed=2)
    cluster = pipelined(model, (x, scale), device_map={"first": 0, "last": 1})
    with cluster:
        result = model(x, scale)
    expected = plain(x, scale)
    for one, other in zip(result["rows"], expected["rows"], strict=True):
        assert torch.allclose(one, other, rtol=1e-12)  # rows of a part may round otherwise
    assert result["kind"] == "test"
    for name in ("norm", "cache"):
        with pytest.raises(BaechiError, match=f"the output {name} "):
            float(result[name])


class Turned(nn.Module):
    """The batch is the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = self.last(self.first(x)) + mask
        return result


def test_how_inputs_are_split() -> None:
    """By a dimension, or not at all; a dimension that is not the batch's is told."""
    model = seeded(Turned)
    plain = copy.deepcopy(model)
    x, mask = noise(3, 6, 4), noise(6, 4, seed=2)
    where = {"first": 0, "last": 1}
    cluster = pipelined(model, (x, mask[:1]), device_map=where, split={"x": 1, "mask": None})
    with cluster:
        assert torch.equal(model(x, mask[:1]), plain(x, mask[:1]))
    with pytest.raises(ValueError, match="dimension 1 of mask"):
        pipelined(seeded(Turned), (x, mask), device_map=where, split={"x": 1, "mask": 1})


def test_a_placement_that_is_searched() -> None:
    """`microbatches="auto"` compares numbers, 1 among them; the model computes the same."""
    model = seeded(lambda: Words("same"))
    plain = copy.deepcopy(model)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, {"ids": IDS, "labels": LABELS}, cluster=cluster, microbatches="auto")
    with cluster:
        assert torch.allclose(model(IDS, LABELS), plain(IDS, LABELS))


class Similar(nn.Module):
    """How alike its rows are on both sides, times a scale that lies elsewhere: ops run where most lies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0, 4.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one, other = self.first(x), self.last(x)
        return one, (one @ other.t()).sum(1, keepdim=True) * self.scale.exp()


def test_outputs_that_lie_elsewhere_in_parts() -> None:
    """Where an op runs depends on the sizes of what it is given, so on the number of rows."""
    model = seeded(Similar)
    plain = copy.deepcopy(model)
    cluster = pipelined(model, noise(2, 4), microbatches=2, device_map={"": 1, "first": 0, "last": 0})
    with cluster:
        assert torch.allclose(model(noise(2, 4))[0], plain(noise(2, 4))[0])


class Squeezing(nn.Module):
    """A model that fails on fewer than three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        each = self.last(self.first(x).relu()).squeeze()
        assert len(x) > 2, "a few rows"
        return torch.stack([row.square() for row in each.unbind()]).mean()


def test_a_model_that_fails_on_a_few_rows(caplog: pytest.LogCaptureFixture) -> None:
    """Looks are at whole microbatches."""
    model = seeded(Squeezing)
    plain = copy.deepcopy(model)
    cluster = pipelined(model, noise(9, 4), microbatches=3, device_map={"first": 0, "last": 1})
    with caplog.at_level(logging.WARNING), cluster:
        loss = model(noise(9, 4))
        loss.backward()
    assert torch.allclose(loss, plain(noise(9, 4)))
    assert not caplog.records


class Alternating(nn.Module):
    """Every second call weighs its loss otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.table(x)).square().mean() * (1 + self.calls % 2)


def test_each_look_begins_with_the_same_attributes() -> None:
    """The whole and its parts are asked as microbatches run: what a call leaves, the next does not find."""
    model = seeded(Alternating)
    cluster = pipelined(model, noise(6, 4), device_map=WHERE)
    with cluster:
        model(noise(6, 4)).backward()
    assert model.calls == 1


class Tempered(nn.Module):
    """Embeddings of words, and a temperature: by rows or by labels, it is the same in all parts."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 6), nn.Linear(6, 4)
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, ids: Tensor, labels: Tensor, odd: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.temperature.exp() * (1 + odd.max())  # alike in parts until a row is odd
        return self.head(self.table(ids) * (labels >= 0).unsqueeze(-1)), scale


def test_a_number_that_all_parts_give() -> None:
    """It is joined, with its gradient, though several rules give it; unlike in parts, it raises when read."""
    model = seeded(Tempered)
    plain = copy.deepcopy(model)
    batch = {"ids": IDS, "labels": LABELS, "odd": torch.zeros(8, dtype=torch.float64)}
    cluster = pipelined(model, batch, device_map={**WHERE, "temperature": 0})
    for one, devices in ((plain, None), (model, cluster)):
        with devices or contextlib.nullcontext():
            words, scale = one(**batch)
            (words * scale).square().sum().backward()
    assert torch.equal(scale, plain.temperature.exp())
    assert_same_gradients(model, plain)
    with cluster, pytest.raises(BaechiError, match="nothing says how these are joined"):
        for _ in range(3):  # the call after these is not judged
            scale = model(**batch)[1]
        odd = torch.tensor([0.0] * 7 + [1.0], dtype=torch.float64)
        float(model(**{**batch, "odd": odd})[1])


class Bank(nn.Module):
    """Keeps rows that are trained, to compare the next ones with."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.ones(8, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        loss = (x @ self.rows.clone().T).square().mean()
        if x.requires_grad:
            with torch.no_grad():
                self.rows.copy_(torch.cat([x, self.rows])[:8])
        return loss


def test_what_is_written_with_gradients_only() -> None:
    """Looks have none, so they cannot judge it: it is refused by name, and what is not split runs."""
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), Bank()))
    x = torch.randn(8, 3, dtype=torch.float64)
    plain = copy.deepcopy(model)
    cluster = pipelined(model, {"input": x}, device_map={"0": 0, "1": 1})
    with cluster:
        with pytest.raises(BaechiError, match="1 writes its buffers where gradients are on"):
            model(x)
        assert model[0].weight.grad is None
        plain.load_state_dict(model.state_dict())  # buffers that forward wrote stay written, as ever
        with baechi.unsplit(model):
            model(x).backward()
    plain(x).backward()
    assert torch.equal(model[1].rows.cpu(), plain[1].rows)
    assert_same_gradients(model, plain)


class Edges(nn.Module):
    """Sums nodes along edges, whose numbers it checks where they can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        if not isinstance(x, FakeTensor) and int(edges.max()) >= len(x):
            raise IndexError("the edges have other nodes")
        nodes = self.first(x)
        summed: Tensor = self.last(torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]]))
        return summed


def test_parts_that_the_model_refuses() -> None:
    """Its error becomes ours, with the cure; without gradients the call is not split."""
    x, edges = torch.randn(8, 3, dtype=torch.float64), torch.tensor([[0, 1, 2, 7], [1, 2, 3, 7]])
    model = seeded(Edges)
    expected = copy.deepcopy(model)(x, edges)
    with pipelined(model, {"x": x, "edges": edges[:, :3]}, device_map={"first": 0, "last": 1}):
        with pytest.raises(ValueError, match=r"not with its parts.*other nodes.*baechi.unsplit"):
            model(x, edges)
        with torch.no_grad():
            assert torch.equal(model(x, edges), expected)


class ReturnsWeights(nn.Module):
    """It returns rows, and weights and a buffer as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.bias = nn.Parameter(torch.tensor(-3.0))
        self.register_buffer("three", torch.arange(3.0))

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x)), self.bias, self.first.weight, self.three


@pytest.mark.parametrize("microbatches", [None, 2])
def test_weights_that_are_returned(microbatches: int | None) -> None:
    """They come to where the inputs lie, as other outputs do, and their gradients go back."""
    model = seeded(ReturnsWeights)
    plain, x = copy.deepcopy(model), noise(6, 4)
    cluster = baechi.Cluster.virtual(2)
    where = {"": 1, "first": 1, "last": 0}
    baechi.distribute(model, x, cluster=cluster, device_map=where, microbatches=microbatches)
    with warnings.catch_warnings(), cluster:
        warnings.simplefilter("error")
        for network in (model, plain):
            outputs = network(x)
            assert [str(one.device) for one in outputs] == ["cpu"] * 4
            torch.stack([(one * noise(*one.shape)).sum() for one in outputs]).sum().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-12, atol=1e-12)
