"""Values that the code needs launch at once."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from order.interleaved import distribute
from order.unforeseen import captured
from run.launched import LAUNCHERS, launched_on, runtime_of
from same import assert_same, step
from torch import Tensor, nn

import baechi


def needs_a_value(self: Any, x: Tensor) -> Tensor:
    """The code looks at the output of a layer that waits."""
    h = self.a(x)
    if not captured() and h.sum() > 1e9:  # here
        h = -h
    result: Tensor = self.c(h + self.b(x))
    return result


def needs_a_number(self: Any, x: Tensor) -> Tensor:
    """The code reads a number."""
    h = self.a(x)
    largest = h.abs().max()
    scale = 3.0 if captured() else largest.item()  # here
    result: Tensor = self.c(h / scale + self.b(x))
    return result


def needs_it_inside_a_function(self: Any, x: Tensor) -> Tensor:
    """The code hands a value to a function that no mode sees."""
    h: Tensor = Double.apply(self.a(x))  # here
    result: Tensor = self.c(h + self.b(x))
    return result


class Double(torch.autograd.Function):
    """Twice its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


class Chains(nn.Module):
    """Three layers around a function that is the model's forward."""

    def __init__(self, code: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.code = code
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.code(self, x)


NEEDS = {needs_a_value: "__bool__ needs values", needs_a_number: "item needs values"}
NEEDS |= {needs_it_inside_a_function: "Double.apply takes values"}


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("code", NEEDS, ids=lambda code: code.__name__)
def test_a_value_that_the_code_needs(code: Callable[[Any, Tensor], Tensor], reorder: str) -> None:
    """What the code needs launches at once, and is listed with the line of code that needed it."""
    inputs = {"x": torch.ones(2, 8)}
    reference = step(Chains(code), inputs, training=True)
    model = Chains(code)
    where = {"a": 0, "b": 0, "c": 1}
    with distribute(model, inputs, where, "bac", reorder=reorder):
        result = step(model, inputs, training=True)
        assert baechi.last_step(model).counters["forced"] == 1
    assert_same(reference, result)
    (one,) = runtime_of(model).forced
    assert one.reason == NEEDS[code]
    lines, first = inspect.getsourcelines(code)
    here = next(number for number, line in enumerate(lines, first) if line.endswith("# here\n"))
    assert one.line == f"{Path(__file__).name}:{here}"
    assert launched_on(model, "cpu:0") == ["a", "b"]
    comparison = baechi.check(model, inputs)
    assert not comparison.in_plan_order and comparison.equal
    assert [line.rsplit(" ", 1)[1] for line in comparison.ran[-1].forced] == [one.line]
    assert str(one) in str(comparison)
