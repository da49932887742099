"""Asking what a layer will return costs little, and changes nothing."""

import copy
import functools
import gc
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures import OTHERS
from architectures.base import noise, seeded
from order.interleaved import distribute
from run.checks import REORDER, vectors
from run.launched import runtime_of
from run.worlds import Net, linear
from same import ROUNDING, assert_same, step
from torch import Tensor, nn

import baechi

SAID = SimpleNamespace(value=None)


class Keeps(nn.Linear):
    """Leaves a tensor in an attribute, as many models do for their losses."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2
        self.method = self.extra_repr  # a circle of objects
        return super().forward(x)


class Circle(torch.autograd.Function):
    """Keeps its output, which keeps it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.y = x * 2
        return ctx.y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Circles(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return Circle.apply(super().forward(x))


@functools.cache
def steps_of(size: int) -> Tensor:
    """A table that is made once for all."""
    return torch.arange(size).float()


class Table(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + steps_of(x.shape[1])


class Says(nn.Linear):
    """Puts its output where another layer looks for it."""

    def forward(self, x: Tensor) -> Tensor:
        SAID.value = super().forward(x)
        return SAID.value * 2


class Hears(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + SAID.value


class Copies(nn.Linear):
    """Copies a tensor as Python does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(copy.deepcopy(x.detach()))


KINDS = {"keeps": Keeps, "circle": Circles, "table": Table, "copies": Copies}


def crossed(net: Any, x: Tensor) -> Tensor:
    z = net.z(x)
    a, b = net.a(z), net.b(x)
    c, d = net.c(a), net.d(z)
    out: Tensor = b + c * d
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_collects_no_garbage(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = functools.partial(KINDS[kind], 8, 8)
    build = seeded(lambda: Net(crossed, {"z": linear, "a": make, "b": make, "c": make, "d": linear}))
    x, model = noise(3, 8), build()
    order = list("zabcd" if kind == "table" else "zbadc")  # who makes the table comes first
    cluster = distribute(model, x, {"": 0, "z": 1}, order)
    collected: list[Any] = []
    monkeypatch.setattr(gc, "collect", lambda *args: collected.append(args) or 0)
    with cluster:
        found = model(x)
        found.sum().backward()
    assert not collected
    assert torch.equal(found, build()(x))


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_what_waits_is_not_launched_by_asking(reorder: Any) -> None:
    """A layer finds the deferred output of another one in an object: fake and real tensors do not meet."""
    layers = {"z": linear, "a": lambda: Says(8, 8), "b": linear, "c": lambda: Hears(8, 8), "d": linear}
    build = seeded(lambda: Net(crossed, layers))
    x, model = noise(3, 8), build()
    with distribute(model, x, {"": 0, "z": 1}, list("zdbac"), reorder=reorder):
        for _ in range(2):
            assert torch.equal(model(x), build()(x))


class Inner(nn.Module):
    """Kept whole, and calls a layer that the model calls, too."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared, self.own = shared, linear()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.shared(self.own(x))
        return y @ y.T @ x


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = linear()
        self.one, self.other, self.last = Inner(self.shared), Inner(self.shared), linear()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.one(x), self.other(x)
        out: Tensor = self.last(self.shared(a) + b)
        return out


@pytest.mark.parametrize("reorder", ["host", "threads"])
def test_asking_a_whole_layer_calls_no_layer(reorder: Any) -> None:
    x = noise(3, 8).double()
    build = seeded(lambda: Outer().double())
    for seed in range(6):
        model, cluster = build(), baechi.Cluster.virtual(2)
        baechi.distribute(model, x, cluster=cluster, placer=f"random:{seed}", reorder=reorder)
        with cluster:
            assert torch.equal(model(x), build()(x))


@functools.lru_cache(maxsize=1)
def positions(length: int) -> Tensor:
    return torch.arange(length) / length


class Remembers(nn.Module):
    """A layer whose positions a function cache keeps, from its first call on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + positions(x.shape[1])


class Positions(nn.Module):
    """Two such layers that wait for others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.m, self.n = Remembers(), Remembers()

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.m(self.a(x)), self.n(self.b(x))
        result: Tensor = first * second + self.c(x)
        return result


@pytest.mark.parametrize("reorder", REORDER)
def test_foresight_leaves_no_fake_tensor_in_function_caches(reorder: Any) -> None:
    """What a layer will return is foreseen with fake tensors; a cache kept one, and gave it to a real call.

    MaskFormer's position embeddings are cached so.
    """
    plain, model = (seeded(Positions)() for _ in range(2))
    expected = step(plain, vectors(), training=True)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, vectors(), cluster=cluster, placer="random:0", reorder=reorder)
    for _ in range(2):
        positions.cache_clear()
        with cluster:
            result = step(model, vectors(), training=True)
        assert_same(expected, result, tolerance=ROUNDING)


def test_no_errors_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A layer that cannot run with fake tensors is forced, and torch's log says nothing of it."""
    given = next(one for one in OTHERS if one.name == "qwen2_moe")
    graph = baechi.profile(given.build(), given.inputs(), cluster=baechi.Cluster.virtual(1), training=True)
    cluster = baechi.Cluster.virtual(3, memory="1GiB")
    model = baechi.assign(given.build(), baechi.place(graph, cluster, "random:0"))
    torch_log = logging.getLogger("torch")
    torch_log.addHandler(caplog.handler)
    try:
        with cluster:
            step(model, given.inputs(), training=True)
    finally:
        torch_log.removeHandler(caplog.handler)
    forced = 0 if torch.__version__ >= (2, 15) else 2  # from then on the experts' operators take fake tensors
    assert runtime_of(model).counts["forced"] == forced
    assert [record.levelname for record in caplog.records if record.levelno >= logging.ERROR] == []
