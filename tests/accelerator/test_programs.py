"""Steps as programs on devices that torch keeps apart: the same numbers, and nothing unordered."""

import copy
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients, loop
from run.pipeline.nets import noise, seeded
from torch import Tensor, nn

import baechi
from accelerator import NAMES, ToyMachine
from baechi.run import runtime_of

from .devices import FIRST, cluster, on_host, there
from .where import moved

EXACT = baechi.Stages(backend="aot_eager")


class Tied(nn.Module):
    """A weight that two devices read, a buffer, a mask that the code makes, a write across a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(6, 6, bias=False) for _ in range(3))
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.3)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        kept = self.first(x)
        hidden = self.middle(self.drop(kept.relu()))
        hidden += kept
        mask = torch.arange(6, device=x.device) % 2
        return self.last(self.norm(hidden) * mask).square().mean()


WHERE = {"first": 0, "drop": 0, "middle": 1, "last": 1, "norm": 0}


@pytest.mark.parametrize("late", [True, False], ids=["late", "clocks"])
@pytest.mark.parametrize("order", ["1f1b", pytest.param("gpipe", marks=pytest.mark.full)])
def test_as_the_loop(toy: ToyMachine, order: Any, late: bool) -> None:
    toy.restart(seed=5, late=late)
    model, x = seeded(Tied), noise(7, 6)
    plain, devices = moved(copy.deepcopy(model), FIRST), cluster(*NAMES[:2])
    graph = baechi.profile(model, x, cluster=devices, training=True, source="estimate", microbatches=3)
    plan = baechi.Plan.from_device_map(graph, devices, WHERE)
    pipeline = baechi.pipeline(plan, 3, order)
    baechi.distribute(model, plan=pipeline, loss_weights="rows", coupled="accept", compile=EXACT)
    given = there(x).requires_grad_()
    for _ in range(2):
        torch.manual_seed(3)
        loss = model(x=given)
        loss.backward()
        expected = loop(plain, {"x": there(x)}, 3)
    assert runtime_of(model).counts["programs"] >= 3 * 4
    assert torch.allclose(loss.detach().cpu(), expected.cpu(), rtol=1e-12)
    assert given.grad is not None and bool(given.grad.isfinite().all())
    assert_same_gradients(on_host(model), on_host(plain))
    for name, buffer in model.named_buffers():
        assert torch.allclose(buffer.cpu(), plain.get_buffer(name).cpu(), rtol=1e-12), name


@pytest.mark.parametrize("late", [True, False], ids=["late", "clocks"])
def test_a_plain_step(toy: ToyMachine, late: bool) -> None:
    """With dropout, whose draws are those of one device."""
    toy.restart(seed=6, late=late)
    model, x = seeded(Tied), noise(7, 6)
    plain, devices = moved(copy.deepcopy(model), FIRST), cluster(*NAMES[:2])
    baechi.distribute(model, x, cluster=devices, device_map=WHERE, source="estimate", compile=EXACT)
    for _ in range(2):
        losses = []
        for one in (model, plain):
            torch.manual_seed(3)
            losses.append(one(there(x)))
            losses[-1].backward()
    assert runtime_of(model).counts["programs"] >= 2
    assert torch.allclose(losses[0].detach().cpu(), losses[1].detach().cpu(), rtol=1e-12)
    assert_same_gradients(on_host(model), on_host(plain))
