"""Regions that programs run again in backward: the same numbers to the bit, in less memory."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import SEED, assert_same_gradients, loop
from run.pipeline.nets import noise, seeded
from run.programs.test_calls import EXACT
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baechi

X = noise(512, 16)
WHERE = {"": 0, "blocks.2": 1, "blocks.3": 1, "last": 1}


class Block(nn.Module):
    """Draws, and keeps several activations."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x))) * scale))


class Net(nn.Module):
    """Blocks in a row."""

    kind: type[nn.Module] = Block

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.kind() for _ in range(4)])
        self.last = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.called(block, x)
        return self.last(x).square().mean()

    def called(self, block: nn.Module, x: Tensor) -> Tensor:
        return block(x, scale=0.5)  # type: ignore[no-any-return]


class Own(Net):
    """The code checkpoints its blocks."""

    def called(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=False, scale=0.5)  # type: ignore[return-value, no-any-return]


class Often(Net):
    """Each block is called twice, and its calls follow each other."""

    def called(self, block: nn.Module, x: Tensor) -> Tensor:
        return block(block(x))  # type: ignore[no-any-return]


class Counting(Block):
    """Has running statistics, and a buffer that it writes and reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)  # type: ignore[assignment]
        self.register_buffer("seen", torch.ones(()))

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        self.seen += 1  # type: ignore[operator]
        return super().forward(x * self.seen.sqrt(), scale=scale) / self.seen  # type: ignore[operator]


class Statistics(Net):
    kind = Counting


def stepped(
    model: nn.Module, number: int, where: Mapping[str, int] = WHERE, **asked: Any
) -> tuple[Tensor, baechi.Timeline]:
    """One step of a model as programs, on two emulated devices."""
    cluster = baechi.Cluster.virtual(2)
    split: dict[str, Any] = {"microbatches": number, "coupled": "accept"} if number > 1 else {}
    baechi.distribute(model, X, cluster=cluster, device_map=where, compile=EXACT, **split, **asked)
    with cluster:
        torch.manual_seed(SEED)
        loss = model(X)
        loss.backward()
        timeline = baechi.last_step(model)
    assert timeline.counters["programs"]
    return loss.detach(), timeline


def as_kept(kind: type[nn.Module], number: int, **asked: Any) -> tuple[baechi.Timeline, baechi.Timeline]:
    """Steps that keep all, and run blocks again: the same numbers to the last bit, buffers included."""
    model = seeded(kind)
    kept = copy.deepcopy(model)
    plain = Net.__new__(Net)
    plain.__dict__ = copy.deepcopy(kept).__dict__  # calls its blocks without checkpoints
    base = plain if kind is Own else kept
    expected, before = stepped(base, number)
    loss, after = stepped(model, number, **asked)
    assert torch.equal(loss, expected)
    for (name, one), other in zip(model.named_parameters(), base.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None, name
        assert torch.equal(one.grad, other.grad), name
    for one, other in zip(model.buffers(), base.buffers(), strict=True):
        assert torch.equal(one, other)
    return before, after


@pytest.mark.default_cases(3)
@pytest.mark.parametrize("number", [4, 1])
@pytest.mark.parametrize(("kind", "recompute"), [(Net, "blocks"), (Own, None), (Often, "blocks")])
def test_numbers_stay_and_memory_falls(kind: type[nn.Module], recompute: str | None, number: int) -> None:
    before, after = as_kept(kind, number, recompute=recompute)
    assert all(after.peak_bytes[name] < 0.8 * before.peak_bytes[name] for name in ("cpu:0", "cpu:1"))
    assert before.counters["transfers"] == after.counters["transfers"]


def test_each_block_runs_again_once() -> None:
    """From what it was given, not from what the first was: at most the forward's kernels are added."""
    before, after = as_kept(Net, 1, recompute="blocks")
    again = after.counters["kernels"] - before.counters["kernels"]
    assert 4 * 3 <= again <= 4 * 6  # of the norm, two products, tanh, a product by a number, the sum


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("number", [4, 1])
def test_buffers_that_are_written(number: int) -> None:
    """What is made of them is kept: they have other values when the block runs again."""
    as_kept(Statistics, number, recompute="blocks")


def test_the_loop() -> None:
    """A witness without programs: the whole model, microbatch after microbatch."""
    model = seeded(Net)
    plain = copy.deepcopy(model)
    stepped(model, 4, recompute="blocks")
    torch.manual_seed(SEED)
    loop(plain, {"x": X}, 4)
    assert_same_gradients(model, plain, 1e-13)


@pytest.mark.full
def test_a_region_over_two_devices() -> None:
    """Each device makes its own anew; what comes from the other is kept."""
    torn = {"": 0, "blocks.1.down": 1, "blocks.2": 1, "last": 1}
    model, kept = seeded(Net), seeded(Net)
    expected, _ = stepped(kept, 4, torn)
    loss, _ = stepped(model, 4, torn, recompute="blocks")
    assert torch.equal(loss, expected)
    assert_same_gradients(model, kept, 0)


@pytest.mark.full
def test_the_backward_of_weights_apart_keeps_all() -> None:
    """Both of its halves would run a region again."""
    model, kept = seeded(Own), seeded(Own)
    expected, _ = stepped(kept, 4)
    loss, _ = stepped(model, 4, weights_apart=True)
    assert torch.equal(loss, expected)
    assert_same_gradients(model, kept, 0)


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("number", [4, 1])
def test_peaks_are_foreseen(number: int) -> None:
    """Also what drops: it is kept, and counted."""
    model, cluster = seeded(Net), baechi.Cluster.virtual(2)
    graph = baechi.profile(
        model, X, cluster=cluster, microbatches=number, training=True, source="estimate", programs=True
    )
    plan = baechi.place(graph, cluster, "even", recompute="blocks")
    steps = baechi.pipeline(plan, number) if number > 1 else plan
    predicted, dry = baechi.simulate(steps), baechi.dry_run(model, X, steps)
    for name, peak_bytes in dry.peak_bytes.items():
        assert 0.98 * peak_bytes <= predicted.peak_bytes[name] <= 1.5 * peak_bytes, name
