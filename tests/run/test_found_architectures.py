"""What little copies of well-known models showed: each the smallest model that computed something else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from same import assert_same, step
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import baechi
from baechi.backend.marks import mark_of

REORDER = (False, "host", "threads")

ROUNDING = 2e-5
"""What single precision loses where three or more gradients are summed in another order."""


def vectors() -> dict[str, Any]:
    return {"x": noise(4, 8)}


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
    for _ in range(2):
        expected = step(plain, inputs(), training=training)
        with cluster:
            result = step(model, inputs(), training=training)
        assert_same(expected, result, tolerance=ROUNDING)


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
