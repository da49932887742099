"""Activation checkpointing runs parts of the model again in backward, below any module call."""

from typing import Any

import pytest
import torch
from architectures import HELD_IN, Architecture
from architectures.base import noise, seeded
from order.interleaved import distribute
from run.checks import REORDER, check, vectors
from run.worlds import Net
from same import assert_same, step
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import baechi
from baechi.torchlib.tensors.storage import mark_of


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "hooks"])
@pytest.mark.parametrize("architecture", HELD_IN, ids=lambda a: a.name)
def test_hugging_face(architecture: Architecture, reentrant: bool) -> None:
    """Blocks checkpointed by the library's own switch, before or after they are torn over devices.

    Each architecture meets both, and both kinds of checkpoints; which with which goes by turns.
    """
    early = (HELD_IN.index(architecture) + reentrant) % 2 == 0
    plain, model = architecture.build().train(), architecture.build().train()
    cluster = baechi.Cluster.virtual(3)
    plain.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if early:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    baechi.distribute(model, architecture.inputs(), cluster=cluster, placer="random:0")
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    reference = step(plain, architecture.inputs(), training=True)
    with cluster:
        for _ in range(2):
            result = step(model, architecture.inputs(), training=True)
            assert torch._C._len_torch_function_stack() == 0
    assert_same(reference, result, tolerance=2e-5)


class Around(torch.autograd.Function):
    """A custom function whose forward calls a layer between operations of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        return layer(x * 2) + x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def test_a_custom_function_around_a_layer() -> None:
    """What such a function does before and after the layer are two pieces of glue, not a cycle."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = Around.apply(self.a(x), self.b)
            return out

    graph = baechi.profile(Model(), torch.ones(2, 4), cluster=baechi.Cluster.virtual(2))
    assert [n for n in graph.placed()] == ["a", "glue:/Around#0", "b", "glue:/add#0"]


class Fails(torch.autograd.Function):
    """Raises in backward when told to."""

    on = False

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        if Fails.on:
            raise RuntimeError("on purpose")
        return grad


class Block(nn.Module):
    """Two layers with glue over both, the part of it run again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) * self.b(x) + x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = Fails.apply(self.c(x))
        out: torch.Tensor = checkpoint(self.inner, h, use_reentrant=False)
        return out


def test_an_exception_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a backward that failed, after code ran again in it, the next step is right."""
    torch.manual_seed(0)
    plain, model = Block(), Block()
    model.load_state_dict(plain.state_dict())
    inputs = {"x": torch.randn(3, 4)}
    cluster = baechi.Cluster.virtual(3)
    baechi.distribute(model, inputs, cluster=cluster, device_map={"a": 0, "b": 1, "c": 2})
    reference = step(plain, inputs, training=True)
    with cluster:
        monkeypatch.setattr(Fails, "on", True)
        with pytest.raises(RuntimeError, match="on purpose"):
            step(model, inputs, training=True)
        monkeypatch.setattr(Fails, "on", False)
        assert torch._C._len_torch_function_stack() == 0
        result = step(model, inputs, training=True)
    assert_same(reference, result, tolerance=1e-6)


class GatedAgain(nn.Module):
    """A gate that multiplies by its input, checkpointed behind some layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(torch.tanh(torch.tanh(self.a(x))))
        gated: Tensor = checkpoint(lambda z: F.gelu(self.b(z)) * z, hidden, use_reentrant=False)
        return gated


@pytest.mark.parametrize("reorder", REORDER)
def test_glue_in_a_checkpointed_region_runs_where_it_ran(reorder: Any) -> None:
    """Backward counts on from the forward: what it computes again is newer than what forward made.

    It counted from one again. So the region's input, made late in forward, looked newer than what the
    layer made of it, and glue over both ran on the input's device: torch refused the other device.
    """
    check(GatedAgain, vectors, {"a": 0, "b": 1}, reorder)


class KeepsState(nn.Module):
    """A state that outlives the call, and meets what the next call makes first."""

    state: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        made = self.b(x)
        mixed: Tensor = made if self.state is None else made + self.state
        self.place = mark_of(mixed)
        self.state = torch.tanh(self.a(mixed)).detach()
        return mixed


def test_what_an_earlier_step_made_is_older() -> None:
    """Steps count on, too: glue over a kept state runs where what this step made lies."""
    model, cluster = KeepsState(), baechi.Cluster.virtual(2)
    baechi.distribute(model, noise(4, 8), cluster=cluster, device_map={"a": 0, "b": 1}, reorder=False)
    with cluster:
        for _ in range(2):
            model(noise(4, 8))
            assert model.place is not None and model.place.place == "cpu:1"


class Joined(nn.Module):
    """Begins with an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = self.last(torch.cat([a, b], 1)[:, 1:5])
        return out


class Region(nn.Module):
    """A region that is one checkpointed region."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = Joined(), reentrant

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return checkpoint(self.inner, b, a, use_reentrant=self.reentrant)


@pytest.mark.parametrize("inner", [False, True], ids=["inner", "inner-reentrant"])
@pytest.mark.parametrize("outer", [False, True], ids=["outer", "outer-reentrant"])
def test_a_region_in_a_region(outer: bool, inner: bool) -> None:
    """The inner one is run again while the outer one is; it begins with an operation over two places."""

    def code(net: Any, x: Tensor) -> Any:
        return checkpoint(net.around, net.first(x), x, use_reentrant=outer)

    layers = {"first": lambda: nn.Linear(4, 4), "around": lambda: Region(inner)}
    build = seeded(lambda: Net(code, layers).double())
    plain, model = build(), build()
    x = noise(3, 4).double()
    plain(x).pow(2).sum().backward()
    with distribute(model, x, {"": 1, "first": 0}, [], reorder=False):
        model(x).pow(2).sum().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=0, atol=1e-12)


class Reads(nn.Module):
    """A layer that computes with the weight of another, which it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, other: nn.Linear) -> Tensor:
        return x @ other.weight * self.scale


def test_the_optimizer_writes_after_what_a_region_read_again() -> None:
    """No gradient comes back from what is not used, so nothing else orders the weight's copy and the step."""

    def code(net: Any, x: Tensor) -> Any:
        def region(x: Tensor) -> Tensor:
            net.reads(x, net.lent)
            return net.last(x).exp()

        return net.lent(checkpoint(region, x, use_reentrant=False))

    layers = {"reads": Reads, "lent": lambda: nn.Linear(4, 4), "last": lambda: nn.Linear(4, 4)}
    model = seeded(lambda: Net(code, layers))()
    before = model.lent.weight.detach().clone()
    with distribute(model, noise(3, 4), {"": 1, "reads": 0}, [], reorder=False):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(noise(3, 4)).sum().backward()
        optimizer.step()
    assert not torch.equal(model.lent.weight, before)
