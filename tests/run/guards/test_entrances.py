"""Ways into torch that no mode sees."""

import copy
from typing import Any

import pytest
import torch
from order.interleaved import distribute
from run.checks import REORDER, check_late, vectors
from run.launch.equal_layers import WHERE, Net, X
from run.launched import LAUNCHERS
from same import assert_same, step
from torch import Tensor, nn


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


class Double(torch.autograd.Function):
    """Twice its input; its gradient is tripled, so that a lost one is seen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 3


def written_then_given(self: Any, x: Tensor) -> Tensor:
    """A tensor that is real, and that somebody waits to write, goes into a function."""
    total = torch.ones_like(x)
    total.add_(self.a(x))
    doubled: Tensor = Double.apply(total)
    result: Tensor = self.c(doubled + self.b(x))
    return result


def view_then_given(self: Any, x: Tensor) -> Tensor:
    """So does a view of it."""
    total = torch.ones_like(x)
    total.add_(self.a(x))
    doubled: Tensor = Double.apply(total[:, :])
    result: Tensor = self.c(doubled + self.b(x))
    return result


def written_then_mapped(self: Any, x: Tensor) -> Tensor:
    """And into a map over its rows."""
    total = torch.ones_like(x)
    total.add_(self.a(x))
    doubled = torch.vmap(lambda row: row * 2)(total)
    result: Tensor = self.c(doubled + self.b(x))
    return result


def copied_deeply(self: Any, x: Tensor) -> Tensor:
    """The code copies a value."""
    h = self.a(x)
    kept = copy.deepcopy(h.detach())
    result: Tensor = self.c(h + kept + self.b(x))
    return result


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize(
    "code",
    [written_then_given, view_then_given, written_then_mapped, copied_deeply],
    ids=lambda code: code.__name__,
)
def test_ways_past_every_mode(code: Any, reorder: str) -> None:
    """Numbers and gradients are right, and no step hangs."""
    reference = step(Net(code, "abc"), X, training=True)
    model = Net(code, "abc")
    with distribute(model, X, WHERE, "bac", reorder=reorder):
        result = step(model, X, training=True)
    assert_same(reference, result, tolerance=1e-6)
