"""Errors on devices that torch keeps apart: the original one comes out, and the next step is right."""

import copy
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from run.worlds import Net
from torch import Tensor, nn

from accelerator import ToyMachine
from baechi.run.binding import binding_of

from .devices import placed, there, whole

pytestmark = pytest.mark.default_cases(1)

LAUNCHERS = (False, "host", "threads")
WHERE = {"b": 1, "d": 1, "a": 0, "c": 0}


class Fragile(nn.Module):
    """A layer that fails when it is told to: in forward or in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)
        self.forward_error: BaseException | None = None
        self.backward_error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.forward_error is not None:
            raise self.forward_error
        y = torch.tanh(x) @ self.weight
        if self.backward_error is not None and y.requires_grad:
            y.register_hook(self._fail)
        return y

    def _fail(self, grad: Tensor) -> None:
        assert self.backward_error is not None
        raise self.backward_error


def crossed(self: Any, x: Tensor) -> Any:
    """A plan makes `b` wait for `d`."""
    a, b = self.a(x), self.b(x)
    c, d = self.c(a), self.d(x)
    return b + c * d


def built(reorder: Any) -> tuple[Any, nn.Module]:
    """A model on two devices, and the plain one on the first."""
    model = seeded(lambda: Net(crossed, dict.fromkeys("abcd", Fragile)))()
    plain = whole(lambda: copy.deepcopy(model))
    return placed(model, {"x": noise(3, 8)}, WHERE, reorder=reorder, order="dbac"), plain


def is_as_before(toy: ToyMachine, model: Any, plain: nn.Module) -> None:
    """A step is right, and no thread of it, mode or memory is left."""
    toy.restart(seed=3)
    for each in (model, plain):
        each.zero_grad()
        each(**there({"x": noise(5, 8)})).sum().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one.grad.cpu(), other.grad.cpu(), atol=1e-6)
    assert torch._C._len_torch_function_stack() == 0
    assert not toy.faults()


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("layer", "ab")
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_an_error_in_a_layer(toy: ToyMachine, reorder: Any, error: Any, layer: str, phase: str) -> None:
    """It comes out as it was raised; in forward with the layer's name."""
    model, plain = built(reorder)
    raised = error("on purpose")
    setattr(getattr(model, layer), f"{phase}_error", raised)
    with pytest.raises(error, match="on purpose") as caught:
        model(**there({"x": noise(3, 8)})).sum().backward()
    if phase == "forward" and error is ValueError:
        assert any(f"in layer {layer}" in note for note in caught.value.__notes__)
    setattr(getattr(model, layer), f"{phase}_error", None)
    del caught
    is_as_before(toy, model, plain)


@pytest.mark.parametrize("reorder", LAUNCHERS)
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_out_of_memory_on_the_second_device(toy: ToyMachine, reorder: Any, phase: str) -> None:
    """The original error; then all memory is back, and a smaller batch runs."""
    model, plain = built(reorder)
    big = there({"x": noise(4096, 8)})
    model(**there({"x": noise(3, 8)})).sum().backward()
    model.zero_grad()
    toy.synchronize()
    before = torch.accelerator.memory_allocated(1)
    out = model(**big) if phase == "backward" else None
    held = torch.accelerator.memory_allocated(1)
    toy.limit(1, held + 1024)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="toy:1 is out of memory"):
            if out is None:
                model(**big)
            else:
                out.sum().backward()
    finally:
        toy.limit(1, None)
    del out
    model.zero_grad()
    toy.synchronize()
    assert torch.accelerator.memory_allocated(1) <= before
    is_as_before(toy, model, plain)


def test_no_memory_for_the_weights(toy: ToyMachine) -> None:
    """When a device cannot take its weights, all stay where they were, with their gradients."""
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4096)))()
    model(noise(3, 8)).sum().backward()
    before = [(weight, weight.data_ptr(), weight.grad) for weight in model.parameters()]
    toy.limit(1, torch.accelerator.memory_allocated(1) + 4096)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            placed(model, noise(3, 8), {"0": 0, "1": 1})
    finally:
        toy.limit(1, None)
    for (weight, address, grad), now in zip(before, model.parameters(), strict=True):
        assert now is weight and now.is_cpu and now.data_ptr() == address and now.grad is grad
    assert binding_of(model) is None
    placed(model, noise(3, 8), {"0": 0, "1": 1})
    assert model(there(noise(3, 8))).shape == (3, 4096)


@pytest.mark.full
def test_memory_is_the_same_after_many_steps(toy: ToyMachine) -> None:
    """Fifty steps with an optimizer, also with layers that wait: nothing piles up on any device."""
    for reorder in LAUNCHERS:
        model, _ = built(reorder)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        seen = []
        for number in range(50):
            optimizer.zero_grad()
            model(**there({"x": noise(16, 8)})).square().mean().backward()
            optimizer.step()
            if number % 10 == 9:
                toy.synchronize()
                seen.append([torch.accelerator.memory_allocated(index) for index in range(2)])
        assert seen[1:] == seen[:-1]
