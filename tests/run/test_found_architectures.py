"""What little copies of well-known models showed: each the smallest model that computed something else."""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import networkx as nx
import pytest
import torch
from architectures.base import noise, seeded
from same import assert_same, step
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import baechi
from baechi.run.runtime import binding_of
from baechi.torchlib.tensors.storage import mark_of

REORDER = (False, "host", "threads")

ROUNDING = 2e-5
"""What single precision loses where three or more gradients are summed in another order."""


def vectors() -> dict[str, Any]:
    return {"x": noise(4, 8)}


def check_steps(
    plain: nn.Module,
    model: nn.Module,
    cluster: baechi.Cluster,
    inputs: Callable[[], dict[str, Any]],
    *,
    training: bool,
) -> None:
    """Two steps of a distributed model are those of the plain one."""
    for _ in range(2):
        expected = step(plain, inputs(), training=training)
        with cluster:
            result = step(model, inputs(), training=training)
        assert_same(expected, result, tolerance=ROUNDING)


def check(
    build: Callable[[], nn.Module],
    inputs: Callable[[], dict[str, Any]],
    device_map: dict[str, int],
    reorder: Any,
    *,
    training: bool = True,
) -> None:
    """Two steps of a model placed by hand are those of the plain one."""
    plain, model = seeded(build)(), seeded(build)().train(training)
    cluster = baechi.Cluster.virtual(3)
    baechi.distribute(model, inputs(), cluster=cluster, device_map=device_map, reorder=reorder)
    check_steps(plain, model, cluster, inputs, training=training)


def late(graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
    """Devices in turn; what the code reaches last launches first, as far as it can."""
    device_of = {
        name: cluster.names[number % 2] for name, number in zip(graph.placed(), range(99), strict=False)
    }
    for group in graph.groups().values():
        device_of |= dict.fromkeys(group, device_of[group[0]])
    code = {name: place for place, name in enumerate(graph.code_order())}
    ready = nx.lexicographical_topological_sort(graph.subgraph(device_of), key=lambda name: -code[name])
    return baechi.Plan(graph, cluster, device_of, tuple(ready))


def check_late(
    build: Callable[[], nn.Module], inputs: Callable[[], dict[str, Any]], reorder: Any, *, training: bool
) -> nn.Module:
    """Two steps of a model of which much waits are those of the plain one."""
    plain, model = seeded(build)(), seeded(build)().train(training)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, inputs(), cluster=cluster, placer=late, reorder=reorder)
    check_steps(plain, model, cluster, inputs, training=training)
    return model


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


class EnergyOnTwoDevices(nn.Module):
    """A product of a vector with the Jacobian of a layer, the vector made by another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out, vector = torch.tanh(self.a(x)), self.b(x)
            (product,) = torch.autograd.grad(out, x, grad_outputs=vector, create_graph=True)
            (again,) = torch.autograd.grad([out, vector], [x], [vector, out], create_graph=True)
        result: Tensor = product + again
        return result


@pytest.mark.parametrize("reorder", REORDER)
def test_gradients_that_the_code_hands_to_autograd_travel(reorder: Any) -> None:
    """`grad_outputs` are brought to where the outputs lie, as what a layer is given is brought to it."""
    check(EnergyOnTwoDevices, vectors, {"a": 0, "b": 1}, reorder)


class WrittenDown(nn.Module):
    """Rows chosen, inside a layer, by numbers that stand in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.index_fill(1, torch.tensor([2, 5]), 0.5)
        return chosen.index_select(0, torch.as_tensor([3, 1])) * self.weight


@pytest.mark.parametrize("devices", [1, 2])
def test_tensors_that_stand_in_the_code_belong_nowhere_yet(devices: int) -> None:
    """`torch.tensor([2])` goes with its first user on an emulated cluster, as `torch.full` does.

    It lay on the host, for good: a model with such a line ran where glue brought the tensor, and
    raised inside layers and on one device.
    """
    device_map = {"0": 0, "1": devices - 1}
    check(
        lambda: nn.Sequential(nn.Linear(8, 8), WrittenDown()),
        lambda: {"input": noise(4, 8)},
        device_map,
        True,
    )


class Coupled(torch.autograd.Function):
    """Two layers one after the other; backward runs both again and sums their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, one: nn.Module, other: nn.Module) -> Tensor:
        ctx.layers = one, other
        ctx.save_for_backward(x)
        with torch.no_grad():
            result: Tensor = one(x) + other(x)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        found = []
        for layer in ctx.layers:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                out = layer(x)
            out.backward(grads[0])
            found.append(x.grad)
        return found[0] * 1 + layer(found[1]) - layer(found[1]), None, None


class Reversible(nn.Module):
    """Such a function between layers, as in RevNet and Reformer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        coupled = Coupled.apply(torch.tanh(self.a(x)), self.b, self.c)  # type: ignore[no-untyped-call]
        result: Tensor = self.d(coupled)
        return result


@pytest.mark.parametrize("reorder", REORDER)
def test_gradients_that_a_function_returns_go_home(reorder: Any) -> None:
    """The backward of an `autograd.Function` may compute over devices; its input's gradient goes back.

    Autograd went on with a gradient that lay on another device than the layer before the function.
    """
    check(Reversible, vectors, {"a": 0, "b": 1, "c": 2, "d": 1}, reorder)


# what hangs on a layer, or is set around it, while it waits

SHADE: ContextVar[float] = ContextVar("SHADE", default=1.0)


class Scales(nn.Module):
    """A layer that reads attributes of its own, a list on it, and a context variable."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.scale, self.more = 1.0, [1.0]
        self.offset: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.weight * self.scale * self.more[0] * SHADE.get()
        return scaled if self.offset is None else scaled + self.offset


class Attends(nn.Module):
    """A layer for which torch chooses between kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x)[None, None].chunk(3, -1)
        return F.scaled_dot_product_attention(query, key, value)[0, 0]


class Keeps(nn.Module):
    """A layer that leaves something on itself for the code to read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.kept: Any = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.pow(2).mean()
        return x * self.weight


class Changing(nn.Module):
    """What the code does to `m` around its calls, in one of several ways; `m` waits for the others."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))
        kinds = {"kernels": Attends, "keeps": Keeps, "training_flag": lambda: nn.Dropout(0.5)}
        self.m: Any = kinds.get(change, Scales)()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        first = getattr(self, self.change)(self.a(x))
        second = self.m(self.b(x))
        result: Tensor = self.c(x) + self.d(first) + second
        return result + self.m.kept if self.change == "keeps" else result

    def attribute(self, x: Tensor) -> Any:
        self.m.scale = 2.0
        y = self.m(x)
        self.m.scale = 1.0
        return y

    def container(self, x: Tensor) -> Any:
        self.m.more[0] = 2.0
        y = self.m(x)
        self.m.more[0] = 1.0
        return y

    def tensor(self, x: Tensor) -> Any:
        self.m.offset = torch.ones(8)
        y = self.m(x)
        self.m.offset.mul_(3)
        self.m.offset = None
        return y

    def weights(self, x: Tensor) -> Any:
        return torch.func.functional_call(self.m, {"weight": self.m.weight * 2}, (x,))

    def trained(self, x: Tensor) -> Any:
        self.m.requires_grad_(False)
        y = self.m(x)
        self.m.requires_grad_(True)
        return y

    def training_flag(self, x: Tensor) -> Any:
        self.m.eval()
        y = self.m(x)
        self.m.train(self.training)
        return y

    def context(self, x: Tensor) -> Any:
        token = SHADE.set(2.0)
        y = self.m(x)
        SHADE.reset(token)
        return y

    def kernels(self, x: Tensor) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return self.m(x)

    def keeps(self, x: Tensor) -> Any:
        return self.m(x) + self.m.kept


CHANGES = (
    "attribute", "container", "tensor", "weights", "trained", "training_flag", "context", "kernels", "keeps",
)  # fmt: skip


@pytest.mark.parametrize("reorder", REORDER)
@pytest.mark.parametrize("change", CHANGES)
def test_a_waiting_layer_computes_with_what_was_set_when_it_was_reached(change: str, reorder: Any) -> None:
    """A layer that waits launches later, when the code may have changed it.

    It computed with what hung on it then: other numbers, and nobody was told. `functional_call`, as
    MAML and ensembles use it, gave the weights back before the layer launched.
    """

    token = SHADE.set(0.5)  # the caller's
    model = check_late(lambda: Changing(change), vectors, reorder, training=True)
    SHADE.reset(token)
    runtime = binding_of(model).runtime  # type: ignore[union-attr]
    assert reorder is False or runtime.counts["deferred"]


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


class SetsMemory(nn.Module):
    """Gives a tensor the memory of what waits, by a way into torch that asks no function mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        room = torch.empty(0)
        room.set_(self.a(x).detach().clone())  # type: ignore[call-overload]
        b: Tensor = self.b(x)
        return self.c(room) + b + self.d(x)


@pytest.mark.parametrize("reorder", REORDER)
def test_a_way_into_torch_that_asks_no_mode(reorder: Any) -> None:
    """Glue was asked inside the operation, with the emulator locked, and waited for a thread: for ever."""
    check_late(SetsMemory, vectors, reorder, training=False)
