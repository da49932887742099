"""A model's code was written for one device: whatever it asks, all its tensors lie on the same."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import baechi

X, T = torch.linspace(-1, 1, 32).reshape(8, 4), torch.ones(8, 2)
WHERE = {"a": 0, "b": 1}


def compared(model: Any, x: Tensor, t: Tensor) -> Tensor:
    """As kornia's losses do."""
    y = model.b(model.a(x))
    if y.device != t.device:
        raise ValueError(f"pred and target must be on the same device: {y.device}, {t.device}")
    return functional.mse_loss(y, t)


def made_there(model: Any, x: Tensor, t: Tensor) -> Tensor:
    """What is made on the device of another tensor lies on the device of all."""
    h = model.a(x)
    made = [torch.ones(4, device=h.device), torch.tensor([2.0], device=h.device), h.new_ones(4)]
    with torch.device(h.device):
        made.append(torch.ones(4))
    assert {one.device for one in made} == {x.device} == {model.b.weight.device}
    return functional.mse_loss(model.b(h * sum(made)), t.to(h.device))


def kept(model: Any, x: Tensor, t: Tensor) -> Tensor:
    """A table that is made anew where the device is another one."""
    h = model.a(x)
    if model.table is None or model.table.device != h.device:
        assert model.table is None, "it was made anew"
        model.table = torch.ones(4, device=h.device)
    y = model.b(h * model.table)
    if model.table.device != y.device:
        raise ValueError("elsewhere")
    return functional.mse_loss(y, t)


def run_again(model: Any, x: Tensor, t: Tensor) -> Tensor:
    """Backward runs the code again."""
    loss: Tensor = checkpoint(compared, model, x, t, use_reentrant=False)
    return loss


class Net(nn.Module):
    def __init__(self, code: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.code, self.table = nn.Linear(4, 4), nn.Linear(4, 2), code, None

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        loss: Tensor = self.code(self, x, t)
        return loss


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("microbatches", [None, 2], ids=["whole", "pipelined"])
@pytest.mark.parametrize("inputs", ["host", "second", "first"])
@pytest.mark.parametrize("code", [compared, made_there, kept, run_again])
def test_code_that_compares_devices(code: Any, microbatches: int | None, inputs: str) -> None:
    """It runs, and computes what the plain model does."""
    if code is kept and microbatches:
        pytest.skip("a table that microbatches share is another matter")
    cluster = baechi.Cluster.virtual(2)
    model, plain = Net(code), Net(code)
    baechi.distribute(model, (X, T), cluster=cluster, device_map=WHERE, microbatches=microbatches)
    with cluster:
        place = {"host": "cpu", "first": "cpu:0", "second": "cpu:1"}[inputs]
        x, t = X.to(place), T.to(place)
        for _ in range(2):
            loss, expected = model(x, t), plain(X, T)
            assert loss.device == x.device == t.device
            loss.backward()
            expected.backward()
            torch.testing.assert_close(loss.cpu(), expected)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
