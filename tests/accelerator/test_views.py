"""Views of inputs that layers on other devices return; regions that run again inside of regions."""

import contextlib
import copy
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from matrix import pairs_by_tier
from run.worlds import Net
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from accelerator import ToyMachine

from .devices import placed, there, whole

pytestmark = pytest.mark.default_cases(1)

LAUNCHERS = (False, "host", "threads")
MODES = {mode.__name__: mode for mode in (torch.no_grad, torch.inference_mode, contextlib.nullcontext)}


@pytest.mark.parametrize(
    ("write", "mode", "reorder"),
    pairs_by_tier(["view", "original", "layer"], list(MODES), LAUNCHERS),
    ids=str,
)
def test_one_memory(toy: ToyMachine, write: str, mode: str, reorder: Any) -> None:
    """What is written through the view or to the input is seen in the other, also by the caller."""

    def code(self: Any, x: Tensor) -> Any:
        view = self.view(x)
        kept = view * 1
        if write == "layer":
            self.write(view)
        else:
            (view if write == "view" else x).mul_(2)
        return self.b(x) + self.c(view.reshape(-1)[:8] * 1).sum() + kept.mean()

    def linear() -> nn.Module:
        return nn.Linear(8, 8)

    layers = {
        "view": lambda: nn.Unflatten(1, (2, 4)),
        "write": lambda: nn.ReLU(True),
        "b": linear,
        "c": linear,
    }
    model = seeded(lambda: Net(code, layers))()
    plain = whole(lambda: copy.deepcopy(model))
    where = {"view": 1, "write": 1, "b": 0, "c": 1}
    model = placed(model, noise(3, 8), where, reorder=reorder, training=False)
    for seed in range(4):
        toy.restart(seed=seed)
        mine, expected_mine = there(noise(3, 8)), there(noise(3, 8))
        with MODES[mode]():
            expected, found = plain(expected_mine), model(mine)
        faults = toy.faults()
        assert torch.equal(found.cpu(), expected.cpu()) and torch.equal(mine.cpu(), expected_mine.cpu())
        assert not faults


@pytest.mark.parametrize("inner", [False, True], ids=["inner", "inner-reentrant"])
def test_a_region_in_a_region(toy: ToyMachine, inner: bool) -> None:
    """The inner one begins with a function over two devices, while the outer one runs again."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(8, 8)

        def forward(self, a: Tensor, b: Tensor) -> Any:
            return self.last(torch.cat([a, b], 1)[:, 1:9])

    class Region(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Joined()

        def forward(self, a: Tensor, b: Tensor) -> Any:
            return checkpoint(self.inner, b, a, use_reentrant=inner)

    def code(self: Any, x: Tensor) -> Any:
        return checkpoint(self.around, self.first(x), self.second(x), use_reentrant=True)

    layers = {"first": lambda: nn.Linear(8, 8), "second": lambda: nn.Linear(8, 8), "around": Region}
    model = seeded(lambda: Net(code, layers))()
    plain = whole(lambda: copy.deepcopy(model))
    model = placed(model, noise(3, 8), {"first": 0, "second": 1, "around": 1}, reorder=False)
    for seed in range(4):
        toy.restart(seed=seed)
        for each in (plain, model):
            each.zero_grad()
            each(there(noise(3, 8))).sum().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert one.grad is not None and other.grad is not None
            assert torch.allclose(one.grad.cpu(), other.grad.cpu(), atol=1e-6)
        assert not toy.faults()
