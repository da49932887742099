"""Split layers in a step of microbatches: losses, gradients and memory."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from run.split.split_layers import TOLERANCE, Tied, assert_same, twins, words
from run.split.test_sharded_outputs import Returned
from run.two_processes import run_by_two
from torch import nn, optim

import baechi
from baechi.torchlib.shards.weight import ShardedWeight

BATCH = (words(4, 5), words(4, 5))


def pipelined(model: nn.Module, memory: str = "1GiB", **more: Any) -> baechi.Cluster:
    cluster = baechi.Cluster.virtual(3, memory=memory)
    asked = {"split": {"head": 3}, "microbatches": 2, "effort": 0, "verify": False, **more}
    baechi.distribute(model, BATCH, cluster=cluster, **asked)
    return cluster


class Wide(Tied):
    """With a second layer to split, along the other axis, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 6)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        for _ in range(2):
            hidden = hidden + self.down(torch.tanh(self.up(hidden)))
        logits = self.head(self.middle(hidden))
        return nn.functional.cross_entropy(logits.transpose(1, 2), labels)


SEVERAL: dict[str, Any] = {"embed": {"dim": 2}, "up": 3, "down": {"in": 2}}


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    ("placer", "layers"),
    [("round-robin", SEVERAL), ("auto", {"head": 3}), ("random:4", {"head": 3}), ("random:4", SEVERAL)],
)
def test_training(placer: str, layers: dict[str, Any]) -> None:
    """Losses and weights over three steps, with gradients that add up, are those of the whole batch."""
    model, plain = twins(Wide)
    with pipelined(model, placer=placer, split=layers):
        losses = []
        for network in (model, plain):
            optimizer = optim.Adam(network.parameters(), lr=0.1)
            found = []
            for step in range(4):
                found.append(network(*BATCH))
                found[-1].backward()
                if step:
                    optimizer.step()
                    optimizer.zero_grad()
            losses.append([loss.item() for loss in found])
    assert losses[0] == pytest.approx(losses[1], abs=TOLERANCE)
    assert_same(model, plain, tolerance=1e-10)
    assert any(isinstance(weight, ShardedWeight) for weight in model.parameters())


def test_returned_logits_a_hook_and_a_copy() -> None:
    """Logits are those of the batch, a hook sees one whole gradient, and a copy runs by itself."""
    model, plain = twins(Returned)
    seen: list[Any] = []
    with pipelined(model):
        model.head.weight.register_hook(lambda grad: seen.append(grad.cpu()))
        loss, logits = model(*BATCH)
        loss.backward()
        expected, whole = plain(*BATCH)
        expected.backward()
        assert torch.allclose(logits.cpu(), whole)
        assert_same(model, plain)
        assert len(seen) == 1 and torch.allclose(seen[0], plain.head.weight.grad)
        other = copy.deepcopy(model)
        other.zero_grad()
        other(*BATCH)[0].backward()
        assert_same(other, plain)


def test_returned_logits_of_tiles_on_all_devices() -> None:
    """Parts of the graph that need each other's logits: they are joined where nothing waits for the join."""
    model, plain = twins(Returned)
    spec = baechi.BatchSpec({"out": 6}, device_matrix=[0, 1, 1, 2, 2, 0, 0])
    with pipelined(model, split={"head": spec}):
        loss, logits = model(*BATCH)
        loss.backward()
    expected, whole = plain(*BATCH)
    expected.backward()
    assert torch.allclose(logits.cpu(), whole)
    assert_same(model, plain)


class WithoutLabels(Returned):
    """Without labels it returns logits only, as a model of transformers that generates."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        if labels is not None:
            return super().forward(ids, labels)
        return None, self.head(torch.relu(self.middle(self.embed(ids))))


def test_a_batch_without_labels() -> None:
    """What its losses count is not asked for: there is none."""
    model, plain = twins(WithoutLabels)
    with pipelined(model):
        model(*BATCH)[0].backward()
        plain(*BATCH)[0].backward()
        for network in (model, plain):
            network.eval()
        with torch.no_grad():
            made = model(BATCH[0])[1]
        assert torch.equal(made.cpu().argmax(-1), plain(BATCH[0])[1].argmax(-1))
        model(*BATCH)[0].backward()
        plain(*BATCH)[0].backward()
    assert_same(model, plain)


def test_joined_logits_have_to_fit() -> None:
    """A dry run sees that logits are joined where the model returns them, which the plan does not say: the
    error names the layer, their bytes, the full device, and the cure."""
    model = twins(lambda: Returned(4000, 8))[0].float()
    split = {"head": baechi.BatchSpec({"out": 1334}, device_matrix=[0, 1, 2])}
    said = (
        r"a dry run of 2 microbatches needs more memory than there is on cpu:\d.* each microbatch joins the "
        r"output of head \(156\.25 KiB\) on one device.* return the loss alone"
    )
    with pytest.raises(baechi.PlacementError, match=said):
        pipelined(model, split=split, memory="700KiB", optimizer="sgd", placer="round-robin", verify=True)


def test_a_loss_function_and_an_input_that_goes_whole() -> None:
    """`split=` names layers and inputs side by side."""

    class Logits(Tied):
        def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self.head(self.middle(self.embed(ids)) * scale)  # type: ignore[no-any-return]

    model, plain = twins(Logits)
    scale = torch.rand(4, 5, 6, dtype=torch.float64)[:1]
    cluster = baechi.Cluster.virtual(3, memory="1GiB")
    inputs = {"ids": BATCH[0], "scale": scale}
    baechi.distribute(
        model, inputs, cluster=cluster, microbatches=2, split={"head": 3, "scale": None},
        loss=lambda logits, target: nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()),
    )  # fmt: skip
    with cluster:
        model(**inputs, target=BATCH[1]).backward()
    nn.functional.cross_entropy(plain(**inputs).flatten(0, 1), BATCH[1].flatten()).backward()
    assert_same(model, plain)


def test_what_fits_nowhere_is_split() -> None:
    """`split="auto"` with microbatches."""
    torch.manual_seed(0)
    model = Tied(20_000, 8)
    plain = copy.deepcopy(model)
    cluster = baechi.Cluster.virtual(4, memory="2MiB")  # the weight and what trains it take 2.4 MiB
    baechi.distribute(model, BATCH, cluster=cluster, microbatches=2, split="auto", optimizer="adam", effort=0)
    with cluster:
        loss = model(*BATCH)
        loss.backward()
    assert loss.item() == pytest.approx(plain(*BATCH).item(), abs=1e-5)
    assert isinstance(model.head.weight, ShardedWeight)


@pytest.mark.full
def test_data_parallel_processes(tmp_path: Path) -> None:
    """Two processes train a split model, and a pipelined one, by DDP: as the plain model by DDP."""
    for printed in run_by_two(Path(__file__).with_name("ddp_worker.py"), tmp_path / "meeting"):
        assert "the same" in printed, printed
