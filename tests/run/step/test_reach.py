"""What a layer reaches without being given it comes to its device: objects, other modules, shared ones."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from order.interleaved import distribute
from run.worlds import Net, linear
from torch import Tensor, nn

import baechi


class Rotation:
    __slots__ = ("matrix",)

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix


class Rigid:
    """A rotation in an object, beside a shift."""

    def __init__(self, rotation: Any, shift: Tensor) -> None:
        self.rotation, self.shift = rotation, shift


@dataclasses.dataclass(frozen=True)
class Frozen:
    rotation: Any
    shift: Tensor


class Moves(nn.Module):
    """A layer that is given a transformation as an object."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(noise(8, 8))

    def forward(self, x: Tensor, frame: Any) -> Tensor:
        moved: Tensor = x @ self.weight @ frame.rotation.matrix + frame.shift
        return moved


class Writes(Moves):
    """Writes to the object, in place and by name."""

    def forward(self, x: Tensor, frame: Any) -> Tensor:
        moved = super().forward(x, frame)
        frame.rotation.matrix = frame.rotation.matrix * 0.5
        return moved


class Statistics(nn.Module):
    """A layer that is given another module, which it calls, and whose buffer and weight it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(noise(8, 8))

    def forward(self, x: Tensor, norm: Any) -> Tensor:
        made: Tensor = norm(x) @ self.weight + norm.running_mean * norm.weight
        return made


class Registers(nn.Module):
    """A layer that makes a buffer in forward, on itself and on a module that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(noise(8, 8))

    def forward(self, x: Tensor, table: Any) -> Tensor:
        for module in (self, table):
            if not hasattr(module, "positions"):
                module.register_buffer("positions", torch.arange(x.shape[1]).to(x.dtype))
        table.positions.add_(1)
        made: Tensor = (x + self.positions) @ self.weight + table.positions
        return made


def moved(make: Callable[[Any, Tensor], Any]) -> Callable[..., Tensor]:
    def code(net: Any, x: Tensor) -> Tensor:
        frame = make(Rotation(torch.eye(8, dtype=x.dtype, device=x.device)), x)
        b = net.b(net.a(x), frame)
        frame = make(Rotation(frame.rotation.matrix * 1.5), frame.shift + b)
        out: Tensor = net.d(net.c(b), frame) + frame.shift
        return out

    return code


def handed(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    return net.b(x, net.n) + net.d(net.c(x), net.n)  # type: ignore[no-any-return]


CODES: dict[str, tuple[Callable[..., Any], Callable[[], nn.Module]]] = {
    "object": (moved(Rigid), Moves),
    "dataclass": (moved(Frozen), Moves),
    "written": (moved(Rigid), Writes),
    "module": (handed, Statistics),
    "registers": (handed, Registers),
}


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
@pytest.mark.parametrize("name", CODES)
def test_it_comes_to_the_layer(name: str, reorder: Any) -> None:
    code, kind = CODES[name]
    norm: Any = nn.Module if name == "registers" else lambda: nn.BatchNorm1d(8)
    layers = {"a": linear, "b": kind, "c": linear, "d": kind, "n": norm}
    build = seeded(lambda: Net(code, layers).double())
    x = noise(3, 8).double()
    plain, model = build(), build()
    order = "acbd" if code is handed else "abcd"
    where = {"": 0, "c": 1} if code is handed else {"": 0, "c": 1, "d": 1}
    with distribute(model, x, where, list(order), reorder=reorder):
        for _ in range(2):
            expected, found = plain(x), model(x)
            expected.sum().backward()
            found.sum().backward()
            assert torch.equal(found, expected)
    for (key, one), (_, other) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), key
        assert one.grad is None or torch.allclose(one.grad, other.grad, rtol=1e-9), key
    for (key, one), (_, other) in zip(plain.named_buffers(), model.named_buffers(), strict=True):
        assert torch.equal(one, other), key


class Reads(nn.Module):
    """A layer that is given a module, and reads its table."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(noise(8, 8))

    def forward(self, x: Tensor, holder: Any) -> Tensor:
        made: Tensor = (x @ self.weight) * holder.table
        return made


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", noise(8))


@pytest.mark.parametrize("inside", [False, True])
def test_a_module_that_is_handed_down_does_not_tie_layers_to_a_device(inside: bool) -> None:
    layers = {"a": linear, "b": Reads, "c": linear, "d": Reads, "n": Holder}
    build = seeded(lambda: Net(lambda net, x: net.d(net.b(x, net.n), net.n) + net.c(net.a(x)), layers))
    x = noise(3, 8)
    model = build()
    cluster = distribute(model, x, {"": 0, "d": 1}, list("bd"))
    if inside:
        with cluster:
            assert torch.equal(model(x), build()(x))
    else:
        assert torch.equal(model(x), build()(x))


class Product(nn.Module):
    """A block that computes by itself with what a shared layer makes."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.shared(x)
        return y @ y.T @ x


class Sharing(nn.Module):
    """Two blocks share a layer, which is registered in the first one, or outside of both."""

    def __init__(self, outside: bool) -> None:
        super().__init__()
        shared = nn.Linear(8, 8)
        if outside:
            self.shared = shared
        self.one, self.other, self.last = Product(shared), Product(shared), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.other(self.one(x)))
        return out


@pytest.mark.parametrize("placer", ["m-topo", "m-etf", "random:1", "random:2"])
@pytest.mark.parametrize("outside", [False, True])
def test_blocks_that_share_a_layer(outside: bool, placer: str) -> None:
    build = seeded(lambda: Sharing(outside).double())
    x = noise(3, 8).double()
    model, cluster = build(), baechi.Cluster.virtual(3)
    baechi.distribute(model, x, cluster=cluster, placer=placer)
    with cluster:
        assert torch.equal(model(x), build()(x))


class Calls(nn.Module):
    """Kept whole; calls an activation that the model calls, too."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.first, self.act, self.last = linear(), act, linear()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.act(self.first(x)))
        return out


@pytest.mark.parametrize("act", [nn.ReLU, lambda: nn.BatchNorm1d(8)])
def test_a_layer_inside_and_outside_of_a_whole_one(act: Callable[[], nn.Module]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = act()
            self.calls = nn.ModuleList([Calls(self.act) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for call in self.calls:
                x = self.act(call(x))
            return x

    x = noise(6, 8)
    for seed in range(3):
        plain, model, cluster = seeded(Model)(), seeded(Model)(), baechi.Cluster.virtual(3)
        baechi.distribute(
            model, x, cluster=cluster, placer=f"random:{seed}", no_split_module_classes=["Calls"]
        )
        with cluster:
            assert torch.equal(model(x), plain(x))


class Jagged(nn.Module):
    """Makes a nested tensor between layers: torch does so with a dummy that lies on meta."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.cat([self.one(x), self.other(x)]).split([2, 4])
        nested = torch.nested.nested_tensor(list(parts), layout=torch.jagged)
        return torch.nested.to_padded_tensor(self.last(nested), 0.0)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_nested_tensors(seed: int) -> None:
    x, build = noise(3, 4), seeded(lambda: Jagged().eval())
    model, cluster = build(), baechi.Cluster.virtual(3)
    baechi.distribute(model, x, cluster=cluster, placer=f"random:{seed}", training=False)
    with torch.no_grad(), cluster:
        assert torch.equal(model(x), build()(x))


@pytest.mark.parametrize("reorder", [False, "host", "threads"])
def test_views_of_one_memory_stay_such(reorder: Any) -> None:
    """A layer writes a tensor, and reads a view of it, which the model reads afterwards, too."""

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(noise(8))

        def forward(self, whole: Tensor, part: Tensor) -> Tensor:
            whole.add_(1)
            return part * self.weight[:4]

    def code(net: Any, x: Tensor) -> Tensor:
        x = net.a(x)
        part = x[:, :4]
        added = net.b(x, part)
        out: Tensor = net.c(x) + torch.cat([added, part], 1)
        return out

    build = seeded(lambda: Net(code, {"a": linear, "b": Adds, "c": linear}).double())
    x = noise(3, 8).double()
    plain, model = build(), build()
    expected = plain(x)
    expected.sum().backward()
    with distribute(model, x, {"": 0, "c": 1, "b": 0}, [], reorder=reorder):
        assert torch.equal(model(x), expected)
    cluster = baechi.Cluster.virtual(3)
    model = build()
    baechi.distribute(model, x, cluster=cluster, placer="random:2", reorder=reorder)
    with cluster:
        found = model(x)
        found.sum().backward()
    assert torch.equal(found, expected)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-9)  # type: ignore[arg-type]


class Checks(Moves):
    """Looks where the tensors of an object lie, before any function takes them."""

    def forward(self, x: Tensor, frame: Any) -> Tensor:
        if frame.shift.device != x.device:
            raise RuntimeError("these lie on two devices")
        return super().forward(x, frame)


def test_what_is_not_brought_is_told() -> None:
    def code(net: Any, x: Tensor) -> Tensor:
        out: Tensor = net.d(net.a(x), Rigid(Rotation(torch.eye(8)), net.c(x)))
        return out

    model = Net(code, {"a": linear, "c": linear, "d": Checks})
    x = noise(3, 8)
    graph = baechi.profile(model, x, cluster=baechi.Cluster.virtual(1))
    cluster = baechi.Cluster.virtual(2)
    baechi.assign(model, baechi.Plan.from_device_map(graph, cluster, {"": 0, "c": 1}))
    with cluster, pytest.raises(RuntimeError, match="two devices") as failed:
        model(x)
    notes = " ".join(failed.value.__notes__)
    assert "layer d" in notes and "Pass them" in notes
    assert "argument 1 (Rigid) holds tensors on cpu:1" in notes
