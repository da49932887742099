"""Buffers that code assigns: counters, running averages; a microbatch reads what the one before it made."""

import contextlib
import copy
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import SEED, assert_same_gradients, loop, without_plan
from run.pipeline.nets import noise, seeded
from run.programs.test_calls import EXACT, programs
from torch import Tensor, nn

import baechi

X = noise(8, 6)
WHERE = {"a": 0, "b": 1, "drop": 1}


class Counts(nn.Module):
    """Counters and averages that are assigned in several ways, read before and after."""

    count: Tensor
    total: Tensor
    mean: Tensor
    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout(0.2)
        for name in ("count", "total", "last"):
            self.register_buffer(name, torch.zeros(()), persistent=name != "last")
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        hidden = self.a(x)
        self.mean = self.mean * 0.75 + hidden.detach().mean(0) * 0.25
        hidden = self.drop(hidden - self.mean)
        self.total = self.total.add_(self.count)
        self.last = hidden.detach().sum() + self.total
        made: Tensor = self.b(hidden) * self.count
        return made.square().mean()


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("number", [1, 4])
def test_as_the_loop(number: int, emulated: bool) -> None:
    """Values, and which of them are the same objects as before."""
    model = seeded(Counts).double()
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    split: dict[str, Any] = {"microbatches": number, "coupled": "accept"} if number > 1 else {}
    baechi.distribute(model, X, cluster=cluster, device_map=WHERE, compile=EXACT, **split)
    for _ in range(3):
        before = [dict(one.named_buffers()) for one in (model, plain)]
        values = {name: one.clone() for name, one in before[0].items()}
        for one in (model, plain):
            one.zero_grad()
        torch.manual_seed(SEED)
        with cluster if emulated else contextlib.nullcontext():
            loss = model(X)
            loss.backward()
        expected = without_plan(plain, {"x": X}, number)
        assert torch.equal(loss.detach(), expected.detach()) and programs(model)
        assert_same_gradients(model, plain, 1e-13)
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, plain.get_buffer(name)), name
            same = plain.get_buffer(name) is before[1][name]
            assert (buffer is before[0][name]) == same, name
            assert same or torch.equal(before[0][name], values[name])
    assert list(model.state_dict()) == list(plain.state_dict())


class Keeps(Counts):
    """A buffer is assigned a tensor with a history."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.a(x).mean(0)
        return self.b(x).square().mean()


class Exchanges(Counts):
    """A buffer is assigned another one."""

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.total
        return self.b(self.a(x)).square().mean() + self.count


@pytest.mark.full
@pytest.mark.parametrize(("kind", "why"), [(Keeps, "detach"), (Exchanges, "items of a")])
def test_what_is_refused_leaves_the_buffers(kind: type[Counts], why: str) -> None:
    model, cluster = seeded(kind).double(), baechi.Cluster.virtual(2)
    before = dict(model.named_buffers())
    with pytest.raises(baechi.CompileError, match=why):  # by the dry run
        baechi.distribute(model, X, cluster=cluster, device_map=WHERE, compile=EXACT)
    baechi.distribute(model, X, cluster=cluster, device_map=WHERE, compile=EXACT, verify=False)
    with pytest.raises(baechi.CompileError, match=why):
        model(X)
    assert all(one is before[name] for name, one in model.named_buffers())


class Scales(nn.Module):
    """A buffer that backward reads as it was before the code assigned it anew."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Identity()
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x) * self.scale
        self.scale = self.scale * 0.5
        made: Tensor = self.b(hidden)
        return made.square().mean()


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_backward_reads_what_forward_read(order: str) -> None:
    """Later microbatches assign the buffer before the backward of an earlier one reads what it was."""
    model = seeded(Scales).double()
    plain = copy.deepcopy(model)
    baechi.distribute(
        model, X, cluster=baechi.Cluster.virtual(2), device_map=WHERE, compile=EXACT, microbatches=4,
        coupled="accept", order=order,
    )  # fmt: skip
    model(X).backward()
    loop(plain, {"x": X}, 4)
    assert programs(model)
    assert torch.equal(model.scale, plain.scale)
    assert_same_gradients(model, plain)


def two_steps(model: nn.Module, plain: nn.Module, number: int) -> None:
    """As programs, and in a loop over microbatches: the losses are equal."""
    split: dict[str, Any] = {"microbatches": number, "coupled": "accept"} if number > 1 else {}
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, X, cluster=cluster, device_map=WHERE, compile=EXACT, **split)
    for _ in range(2):
        expected = loop(plain, {"x": X}, number)
        loss = model(X)
        loss.backward()
        assert torch.allclose(loss.detach(), expected, rtol=1e-13) and programs(model)


class Teacher(nn.Module):
    """A frozen layer follows another one: its weights are written in forward, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for weight, followed in zip(self.b.parameters(), self.a.parameters(), strict=True):
                weight.mul_(0.5).add_(followed, alpha=0.5)
        return (self.a(x) - self.b(x)).square().mean()


class Clips(nn.Module):
    """Trained weights are kept small before they are read, and so are the rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Embedding(5, 6, max_norm=0.5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.a.weight.clamp_(-0.2, 0.2)
        made = self.a(x) + self.drop(torch.arange(len(x)) % 5)
        with torch.no_grad():
            self.b.weight.clamp_(-0.2, 0.2)
        result: Tensor = self.b(made).square().mean()
        return result


@pytest.mark.parametrize("kind", [Teacher, Clips])
@pytest.mark.parametrize("number", [1, 4])
def test_weights_that_forward_writes(number: int, kind: type[nn.Module]) -> None:
    """Each microbatch writes them once, and nothing else does: what is tried before leaves them."""
    model = seeded(kind).double()
    plain = copy.deepcopy(model)
    two_steps(model, plain, number)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, plain.get_parameter(name)), name
    assert_same_gradients(model, plain, 1e-13)


class Doubles(nn.Module):
    """Writes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(self.a(x.mul_(2))).square().mean()
        return result


def test_an_input_that_is_written() -> None:
    """The caller sees it; where gradients follow it is refused, and nothing is written."""
    model = seeded(Doubles)
    baechi.distribute(model, X.clone(), cluster=baechi.Cluster.virtual(2), device_map=WHERE, compile=EXACT)
    given = X.clone()
    model(given).backward()
    assert programs(model) and torch.equal(given, X * 2)
    given = X.clone().requires_grad_() * 1
    with pytest.raises(baechi.CompileError, match=r"an input that has a gradient .*test_buffers\.py.*clone"):
        model(given)
    assert torch.equal(given, X)


class Overlap(nn.Module):
    """A buffer that shows a part of another one."""

    part: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Identity()
        self.double()
        self.register_buffer("all", torch.zeros(2, 6, dtype=torch.float64))
        self.register_buffer("part", self.get_buffer("all")[0])

    def forward(self, x: Tensor) -> Tensor:
        self.part += 1
        result: Tensor = self.b(self.a(x) + self.get_buffer("all").sum(0)).square().mean()
        return result


def test_buffers_that_share_memory_are_refused() -> None:
    model = Overlap()
    with pytest.raises(baechi.CompileError, match="shares memory with other buffers"):
        baechi.distribute(model, X, cluster=baechi.Cluster.virtual(2), device_map=WHERE, compile=EXACT)


class Normed(nn.Module):
    """A norm whose buffers are assigned what was written to them by `out=`."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
        self.b, self.drop = nn.Linear(6, 6), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)).square().mean()


@pytest.mark.parametrize("number", [1, 4])
def test_buffers_written_by_out(number: int) -> None:
    """They are the same objects, and have the values of the loop."""
    model = seeded(Normed)
    plain, before = copy.deepcopy(model), dict(model.named_buffers())
    two_steps(model, plain, number)
    for name, buffer in model.named_buffers():
        assert buffer is before[name], name
        assert torch.allclose(buffer, plain.get_buffer(name), rtol=1e-13), name
    assert_same_gradients(model, plain, 1e-13)
