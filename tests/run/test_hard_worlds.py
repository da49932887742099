"""Worlds at the edge: empty, odd dtypes, sparse, nested, on other devices."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from architectures.base import noise
from run.late import late
from run.worlds import World, crossed, linear, x
from same import ROUNDING, Result, assert_same, step
from torch import Tensor, nn

import baechi
from baechi.errors import BaechiError

pytestmark = pytest.mark.default_cases(2)

REORDER = (False, "host", "threads")


def of(dtype: torch.dtype) -> dict[str, Callable[[], nn.Module]]:
    return dict.fromkeys("abcd", lambda: nn.Linear(8, 8).to(dtype))


def attention() -> nn.Module:
    return nn.MultiheadAttention(8, 2, batch_first=True)


def edges() -> Tensor:
    return noise(8, 8) * (noise(8, 8, seed=3) > 0.5)


def graph_of(layout: torch.layout) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"x": noise(8, 8), "s": edges().to_sparse(layout=layout)}


class Adjacency(nn.Module):
    """A sparse buffer."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.register_buffer("s", edges().to_sparse(layout=layout))


class Convolution(nn.Module):
    """A layer that is given a sparse tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, s: Tensor, x: Tensor) -> Tensor:
        return torch.sparse.mm(s, self.layer(x))


def ragged() -> dict[str, Any]:
    return {"x": torch.nested.nested_tensor([noise(2, 8), noise(3, 8)], layout=torch.jagged)}


def complex_code(net: Any, x: Tensor) -> Tensor:
    a, b = net.a(x), net.b(x)
    turned = torch.view_as_real((a.conj() @ b.mT.conj()).resolve_conj())
    result: Tensor = (net.c(a) * net.d(x)).abs() + turned.mean()
    return result


def built_sparse(net: Any, x: Tensor) -> Tensor:
    here = torch.stack([torch.arange(8, device=x.device), torch.arange(8, device=x.device).flip(0)])
    s = torch.sparse_coo_tensor(here, net.a(x).diagonal(), (8, 8)).coalesce()
    rows = torch.relu(net.b(x)).to_sparse_csr()
    result: Tensor = torch.sparse.mm(s, net.c(s.to_dense())) + rows.detach() @ net.d(x)
    return result


def parts_of_sparse(net: Any, x: Tensor, s: Tensor) -> Tensor:
    s = s.coalesce()
    (rows, columns), values = s.indices(), s.values()
    gathered = torch.zeros_like(x).index_add(0, rows, net.a(x)[columns] * values[:, None])
    result: Tensor = net.b(gathered) + net.c(torch.sparse.mm(s.t() + s, x)) * net.d(x)
    return result


WORLDS = {
    "zero rows": World(crossed, x(0, 8)),
    "zero images": World(
        lambda net, x: net.b((net.a(x) + net.c(x)).flatten(1)) + net.d(x.flatten(1)),
        x(0, 3, 6, 6),
        a=lambda: nn.Conv2d(3, 2, 3),
        c=lambda: nn.Conv2d(3, 2, 3),
        b=lambda: nn.Linear(32, 8),
        d=lambda: nn.Linear(108, 8),
    ),
    "zero sequences": World(
        lambda net, x: net.b(net.a(x)[0]) + net.c(x, x, x)[0] + net.d(x),
        x(0, 4, 8),
        a=lambda: nn.LSTM(8, 8, batch_first=True),
        b=linear,
        c=attention,
        d=linear,
    ),
    "zero words": World(
        lambda net, x: net.b(net.a(x)) + net.c(net.a(x)),
        x(0, 4, dtype=torch.long),
        a=lambda: nn.Embedding(9, 8),
        b=linear,
        c=linear,
    ),
    "zero features": World(
        lambda net, x: net.b(net.a(x)) + net.c(x),
        x(),
        a=lambda: nn.Linear(8, 0),
        b=lambda: nn.Linear(0, 8),
        c=linear,
    ),
    "empty modules": World(
        lambda net, x: sum((layer(x) for layer in net.list), net.c(net.empty(net.a(x)))) + net.d(x),
        x(),
        a=linear,
        c=linear,
        d=linear,
        empty=nn.Sequential,
        list=nn.ModuleList,
        dict=nn.ModuleDict,
        nothing=nn.Module,
    ),
    "nothing at all": World(lambda net, x: x, x(), trains=False, a=nn.Identity),
    "no parameters": World(
        lambda net, x: torch.tanh(x) + net.a(x) * net.b(x), x(), trains=False, a=nn.ReLU, b=nn.Sigmoid
    ),
    "an input returned": World(lambda net, x, y: (x, crossed(net, x), y), lambda: {**x()(), "y": noise(2)}),
    "float64": World(crossed, x(dtype=torch.float64), **of(torch.float64)),
    "bfloat16": World(crossed, x(dtype=torch.bfloat16), **of(torch.bfloat16)),
    "complex": World(complex_code, x(dtype=torch.complex64), **of(torch.complex64)),
    "complex output": World(crossed, x(dtype=torch.complex64), trains=False, **of(torch.complex64)),
    "bool": World(
        lambda net, x, mask: (
            torch.where(mask, net.a(x), net.b(x)) + net.c(mask.float()),
            (net.d(x) > 0) & mask,
        ),
        lambda: {"x": noise(3, 8), "mask": noise(3, 8, seed=4) > 0},
    ),
    "sparse": World(
        lambda net, x, s: torch.sparse.mm(s, net.a(x)) + net.c(s @ net.d(x)), graph_of(torch.sparse_coo)
    ),
    "sparse rows": World(
        lambda net, x, s: torch.sparse.mm(s, net.a(x)) + net.c(s @ net.d(x)), graph_of(torch.sparse_csr)
    ),
    "sparse into layers": World(
        lambda net, x, s: (net.b(s, torch.relu(net.a(s, x))) + net.c(s, x) + net.d(x), s.to_dense()),
        graph_of(torch.sparse_coo),
        **dict.fromkeys("abc", Convolution),
        d=linear,
    ),
    "sparse buffers": World(
        lambda net, x: net.b(torch.sparse.mm(net.coo.s, net.a(x))) + net.c(net.csr.s @ x) + net.d(x),
        x(8, 8),
        **dict.fromkeys("abcd", linear),
        coo=lambda: Adjacency(torch.sparse_coo),
        csr=lambda: Adjacency(torch.sparse_csr),
    ),
    "sparse gradients": World(
        lambda net, x: net.b(net.a(x)) + net.c(net.a(x)),
        lambda: {"x": torch.arange(4)},
        a=lambda: nn.Embedding(9, 8, sparse=True),
        b=linear,
        c=linear,
    ),
    "sparse built on the way": World(built_sparse, x(8, 8)),
    "parts of a sparse one": World(parts_of_sparse, graph_of(torch.sparse_coo)),
    "ragged": World(lambda net, x: net.b(torch.relu(net.a(x))).values(), ragged, trains=False),
}


@pytest.mark.filterwarnings("ignore:Initializing zero-element", "ignore:Sparse", "ignore:.*nested")
@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", WORLDS)
def test_odd(name: str, training: bool) -> None:
    """Two steps are the plain model's, with layers out of the code's order, and by m-ETF."""
    world = WORLDS[name]
    if training and not world.trains:
        pytest.skip("nothing to train")
    cluster, plain = baechi.Cluster.virtual(3), world.build()
    expected = [step(plain, world.inputs(), training=training) for _ in range(2)]
    graph = baechi.profile(
        world.build(), world.inputs(), cluster=cluster, training=training, source="estimate"
    )
    for placer, reorder in [*product((late,), REORDER), ("m-etf", "host")]:
        model = baechi.assign(world.build(), baechi.place(graph, cluster, placer), reorder=reorder)
        with cluster:
            results: list[Result] = [step(model, world.inputs(), training=training) for _ in range(2)]
        for reference, result in zip(expected, results, strict=True):
            assert_same(reference, result, tolerance=ROUNDING)


def test_an_input_returned_is_the_input() -> None:
    """What goes in and comes out unchanged is the caller's own tensor."""
    world = WORLDS["an input returned"]
    cluster, model, given = baechi.Cluster.virtual(3), world.build(), world.inputs()
    baechi.distribute(model, given, cluster=cluster, placer=late)
    for _ in range(2):
        first, _, last = model(**given)
        assert first is given["x"] and last is given["y"]
    with cluster:
        first, _, last = model(**given)
        assert first is given["x"] and last is given["y"]


# --- tensors that the user put somewhere


@pytest.mark.parametrize("reorder", REORDER)
def test_inputs_on_other_devices(reorder: Any) -> None:
    """Inputs may lie on any device, each on another; the outputs lie where the first one does."""

    def code(net: Any, x: Tensor, y: Tensor) -> Any:
        return crossed(net, x + y) * net.a(y)

    world = World(code, lambda: {"x": noise(3, 8), "y": noise(3, 8, seed=2)})
    cluster, model = baechi.Cluster.virtual(3), world.build()
    expected = step(world.build(), world.inputs(), training=True)
    baechi.distribute(model, world.inputs(), cluster=cluster, placer=late, reorder=reorder)
    for here, there in product(("cpu", *cluster.names), repeat=2):
        with cluster:
            given = world.inputs()
            given = {"x": given["x"].to(here), "y": given["y"].to(there)}
            result = step(model, given, training=True)
            assert str(model(**given).device) == here
        assert_same(expected, result, tolerance=ROUNDING)


@pytest.mark.parametrize("n", [1, 3])
def test_what_cannot_be_computed_with_is_refused(n: int) -> None:
    """An input on `meta`, and a layer that the user moved away, raise; then the model is as it was.

    A layer that was moved before the cluster's first step is put back.
    """
    world = World(crossed, x())
    cluster, model = baechi.Cluster.virtual(n), world.build()
    expected = step(world.build(), world.inputs(), training=True)
    baechi.distribute(model, world.inputs(), cluster=cluster, placer=late)
    with pytest.raises(NotImplementedError, match="meta tensor"):
        model(torch.empty(3, 8, device="meta"))
    with cluster:
        if n > 1:
            home = model.a.weight.device
            model.a.to("cpu:1" if home.index != 1 else "cpu:2")
            model(x()()["x"])
            assert model.a.weight.device == home
            model.a.to("cpu:1" if home.index != 1 else "cpu:2")
            with pytest.raises((RuntimeError, BaechiError), match="same device") as caught:
                model(x()()["x"])
            failed = caught.value.__cause__ or caught.value
            assert any("in layer a (Linear)" in note for note in failed.__notes__)
            model.a.to(home)
        result = step(model, world.inputs(), training=True)
    assert_same(expected, result, tolerance=ROUNDING)


def test_nested_distribution_is_refused() -> None:
    """Neither a distributed model, nor what holds one, nor a part of one is distributed again."""
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8))
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, noise(3, 8), cluster=cluster, placer="random:0")
    plan = baechi.plan_of(model)
    for again in (model, nn.Sequential(nn.Tanh(), model), model[0][0], model[1]):
        with pytest.raises(BaechiError, match="distributed already"):
            baechi.distribute(again, noise(3, 8), cluster=cluster)
        with pytest.raises(BaechiError, match="distributed already"):
            baechi.distribute(again, cluster=cluster)
        with pytest.raises(BaechiError, match="distributed already"):
            baechi.assign(again, plan)
    with cluster, pytest.raises(BaechiError, match="emulations do not nest"), cluster:
        pass
