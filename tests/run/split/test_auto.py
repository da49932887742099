"""A model whose tied embedding and head fit on no device, split as little as needed."""

import re
from pathlib import Path

import pytest
import torch
from run.split.split_layers import TOLERANCE, Tied, twins, words
from torch import nn

import baechi

WORDS = 4000


class Large(Tied):
    """Weight, gradient and Adam's state take 4 MiB; nothing else is large."""

    def __init__(self) -> None:
        super().__init__(WORDS, 32)


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("functional", [False, True])
def test_what_fits_nowhere_is_split(functional: bool) -> None:
    """It is refused whole; split it trains as on one large device, with the peaks that were predicted."""
    model, plain = twins(Functional if functional else Large)
    inputs = (words(2, 32, below=WORDS), words(2, 32, below=WORDS))
    cluster = baechi.Cluster.virtual(4, memory="3MiB")
    with pytest.raises(baechi.PlacementError, match="larger than every device"):
        baechi.distribute(model, inputs, cluster=cluster, optimizer="adam", effort=0)
    assert baechi.fits(model, inputs, cluster, optimizer="adam", split="auto", verify=False)
    baechi.distribute(model, inputs, cluster=cluster, optimizer="adam", effort=0, split="auto")
    plan = baechi.plan_of(model)
    shards = [costs.shard for _, costs in plan.graph.placed_costs() if costs.shard is not None]
    head = "glue:/linear#0" if functional else "head"
    assert {shard["of"] for shard in shards} == {"embed", head} and len(plan.devices_used) > 2
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, plain)]
    with cluster:
        for _ in range(3):
            losses = []
            for network, optimizer in zip((model, plain), optimizers, strict=True):
                optimizer.zero_grad()
                loss = network(*inputs)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert losses[0] == pytest.approx(losses[1], abs=TOLERANCE)
    assert baechi.last_step(model).peak_bytes == plan.timeline.peak_bytes


class Untied(nn.Module):
    """An embedding and a head of the same size, each with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 32), nn.Linear(32, WORDS, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.tanh(self.embed(ids)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(("devices", "kib"), [(8, 1310), (4, 1480)])
def test_it_goes_on_to_the_next_layer(devices: int, kib: int) -> None:
    """Two shards of each are too large: the layer that the refusal names is split further, then the other."""
    model, inputs = Untied(), (words(2, 8, below=WORDS), words(2, 8, below=WORDS))
    expected = model(*inputs)
    cluster = baechi.Cluster.virtual(devices, memory=f"{kib}KiB")
    baechi.distribute(model, inputs, cluster=cluster, optimizer="adam", effort=0, split="auto")
    shards = [
        costs.shard for _, costs in baechi.plan_of(model).graph.placed_costs() if costs.shard is not None
    ]
    assert {shard["of"] for shard in shards} >= {"embed", "head"}
    with cluster:
        assert model(*inputs).item() == pytest.approx(expected.item(), abs=TOLERANCE)


def test_what_fits_stays_whole() -> None:
    """Nothing is split without need."""
    model, _ = twins(Tied)
    cluster = baechi.Cluster.virtual(2, memory="1GiB")
    baechi.distribute(model, (words(2, 5), words(2, 5)), cluster=cluster, split="auto", effort=0)
    assert not baechi.plan_of(model).graph.says("shard")
    assert type(model.head.weight) is nn.Parameter


def notes_of_refusal(build: type[nn.Module], memory: str) -> list[str]:
    """What the error says of a model that fits on no two devices, however it is split."""
    model, _ = twins(build)
    inputs = (words(2, 4, below=WORDS), words(2, 4, below=WORDS))
    cluster = baechi.Cluster.virtual(2, memory=memory)
    with pytest.raises(baechi.PlacementError) as caught:
        baechi.distribute(model, inputs, cluster=cluster, optimizer="adam", effort=0, split="auto")
    return caught.value.__notes__


def test_what_cannot_be_split_enough() -> None:
    """The error says what was tried."""
    assert any("split into shards (embed into" in line for line in notes_of_refusal(Large, "1MiB"))


class Functional(Large):
    """Its head is a functional op."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = nn.functional.linear(self.middle(self.embed(ids)), self.embed.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class ReadsTheWeight(Large):
    """Its head is a product with the weight."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.middle(self.embed(ids)) @ self.embed.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_what_stays_whole_says_why() -> None:
    """A weight that other code reads is needed whole: the error says so."""
    notes = notes_of_refusal(ReadsTheWeight, "3MiB")
    assert any("leaves embed whole: other code reads its weight" in line for line in notes)


@pytest.mark.parametrize(
    ("split", "fault"),
    [
        ({"heat": 2}, "no layer of this Tied: is it 'head'"),
        ({"labels": None}, "say how many"),
        ("head", "takes 'auto'"),
    ],
)
def test_mistakes(split: object, fault: str) -> None:
    """A name that is none is told, with the one that it resembles."""
    model, _ = twins(Tied)
    with pytest.raises(ValueError, match=fault):
        baechi.distribute(model, (words(2, 5), words(2, 5)), split=split)  # type: ignore[arg-type]


@pytest.mark.full
def test_the_page_runs() -> None:
    """The programs of the user's page do what it says."""
    page = (Path(__file__).parents[3] / "docs/split.md").read_text()
    names: dict[str, object] = {}
    for program in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(program, names)
        assert baechi.plan_of(names["model"]).graph.says("shard")  # type: ignore[arg-type]
