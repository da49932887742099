"""Functional ops that read the weight of a split layer are split with it, as tied layers are."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run.split.split_layers import assert_same, split_on, twins, words
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import baechi

WORDS, WIDTH = 41, 6


class Reads(nn.Module):
    """A language model whose head is a functional op with the weight of its embedding."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.embed, self.middle = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(WORDS)) if bias else None

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.middle(x))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def head(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.loss(F.linear(x, self.embed.weight, self.bias), labels)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return self.head(self.hidden(self.embed(ids)), labels)


class ReadsTwice(Reads):
    """Two calls, one of them by name; and rows of it."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.hidden(self.embed(ids))
        first = self.loss(F.linear(input=x, weight=self.embed.weight), labels)
        x = self.hidden(x + F.embedding(labels, self.embed.weight, -2))
        return first + self.loss(F.linear(x, self.embed.weight), labels)


class ReadsOften(Reads):
    """More calls than it was captured with, if asked."""

    calls = 1

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x, total = self.embed(ids), torch.zeros(())
        for _ in range(self.calls):
            x = self.hidden(x)
            total = total + self.head(x, labels)
        return total


class RunsAgain(Reads):
    """Backward runs its head again."""

    reentrant = False

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.hidden(self.embed(ids))
        made: Tensor = checkpoint(self.head, x, labels, use_reentrant=self.reentrant)
        return made


class RunsAgainReentrant(RunsAgain):
    reentrant = True


class ReadsHead(Reads):
    """The layer that is split is a `Linear` with a bias, which the op reads, too."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        first = self.proj(self.hidden(self.embed(ids)))
        x = self.hidden(F.embedding(labels, self.proj.weight))
        return self.loss(first + F.linear(x, self.proj.weight, self.proj.bias), labels)


class ReadsBoth(Reads):
    """The op reads what the layer made, and its weight."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return self.head(self.embed(ids), labels)


class Writes(Reads):
    """The code writes the weight before the op reads it."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.hidden(self.embed(ids).detach())
        with torch.no_grad():
            self.embed.weight.mul_(0.5)
        return self.head(x, labels)


class Returns(Reads):
    """Something else than a loss reads the logits."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(self.hidden(self.embed(ids)), self.embed.weight)
        return logits.softmax(-1).square().mean() + 0.0 * labels.sum()


MODELS: list[Callable[[], nn.Module]] = [
    Reads,
    lambda: Reads(bias=True),
    ReadsTwice,
    RunsAgain,
    RunsAgainReentrant,
    ReadsHead,
    ReadsBoth,
    Returns,
]
BATCH = words(4, 5), words(4, 5)


def assert_steps_alike(model: nn.Module, plain: nn.Module, cluster: baechi.Cluster) -> None:
    """Loss and gradients of a step are those of the twin."""
    with cluster:
        loss = model(*BATCH)
        loss.backward()
    expected = plain(*BATCH)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    assert_same(model, plain)


@pytest.mark.parametrize(
    "more", [{}, {"microbatches": 2}, {"placer": "random:3", "reorder": "threads"}], ids=str
)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("build", MODELS, ids=range(len(MODELS)))
def test_steps(build: Callable[[], nn.Module], dim: int, more: dict[str, Any]) -> None:
    """Losses and gradients are those of the model as it is, in training and in evaluation."""
    model, plain = twins(build)
    dims = {"proj": ("out", "in")} if hasattr(model, "proj") else {"embed": ("num_embeddings", "dim")}
    cluster = split_on(3, model, BATCH, {name: {own[dim]: 3} for name, own in dims.items()}, **more)
    for _ in range(2):
        assert_steps_alike(model, plain, cluster)
    with torch.no_grad(), cluster:
        again = model.eval()(*BATCH).item()
    assert again == pytest.approx(plain.eval()(*BATCH).item(), abs=1e-12)


def test_the_weight_travels_nowhere(tmp_path: Path) -> None:
    """Its shards stay; each op is shards beside them, up to the loss, also in a plan from a file."""
    model, plain = twins(ReadsTwice)
    split_on(3, model, BATCH, {"embed": {"num_embeddings": 3}})
    plan = baechi.plan_of(model)
    for number in range(3):
        names = [f"{name}[{number}]" for name in ("embed", "glue:/linear#0", "glue:/linear#1")]
        beside = {plan.device_of[name] for name in [*names, f"glue:/cross_entropy#0[{number}]"]}
        assert len(beside) == 1
        assert list(plan.graph.predecessors(f"glue:/linear#0[{number}]")) == ["glue:/relu#0"]
    plan.save(tmp_path / "plan.json")
    baechi.restore(model)
    baechi.assign(model, tmp_path / "plan.json")
    copied = copy.deepcopy(model)
    with plan.cluster:
        copied(*BATCH).backward()
    plain(*BATCH).backward()
    assert_same(copied, plain)
    assert model.embed.weight.grad is None
    assert_same(baechi.restore(copied), plain)


def test_graphs_from_files() -> None:
    """A graph is split alike where it was made, as a copy, and from a file."""
    made = baechi.profile(Reads(), BATCH)
    graphs = [made, made.noted(outputs="device"), baechi.LayerGraph.from_json(made.to_json())]
    assert [set(baechi.split(graph, "embed", 2)) for graph in graphs] == [
        set(baechi.split(made, "embed", 2))
    ] * 3
    assert "glue:/linear#0[1]" in baechi.split(made, "embed", 2)


def test_a_weight_that_is_written_between() -> None:
    """The op reads it as it is then."""
    model, plain = twins(Writes)
    assert_steps_alike(model, plain, split_on(2, model, BATCH, {"embed": 2}))


def test_more_calls_than_planned() -> None:
    """They run as one more of the last one."""
    model, plain = twins(ReadsOften)
    cluster = split_on(2, model, BATCH, {"embed": 2})
    model.calls = plain.calls = 3
    assert_steps_alike(model, plain, cluster)
