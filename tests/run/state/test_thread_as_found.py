"""A signal's handler may raise at any point of a step: the calling thread's settings are as before it."""

import contextlib
from typing import Any

import pytest
import torch
from run.pipeline.lanes.interrupted import Interrupted, Interruption, each_point
from run.pipeline.nets import noise, pipelined, seeded
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi import Cluster
from baechi.torchlib.private.autograd import are_views_replayed
from baechi.torchlib.private.modes import (
    dispatch_modes,
    function_modes,
    pop_dispatch_mode,
    push_dispatch_mode,
)
from baechi.torchlib.private.patches import FUNCTION_APPLY

SWITCHING = (
    "/grad_mode.py",
    "/_python_dispatch.py",
    "/modes.py",
    "/removable_mode.py",
    "/overrides.py",
    "/calls.py",
    "/runtime.py",
    "/entrances.py",
)
X, Y = noise(4, 4), noise(4, 4, seed=2)
WHERE = {"a": 0, "b": 1, "c": 0}


class Net(nn.Module):
    """Its functional op is written in Python: torch takes the mode of the step off for it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.c(F.relu(self.a(x)) + self.b(x)) - y).square().mean()


def settings() -> list[Any]:
    casts = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.get_default_dtype()
    modes = list(dispatch_modes()), list(function_modes())
    patched = FUNCTION_APPLY.now()
    return [
        patched,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        are_views_replayed(),
        *casts,
        *modes,
    ]


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("emulated", [True, False])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_at_each_point(emulated: bool, microbatches: int) -> None:
    """The caller sees the exception, the thread is as before, and the cluster can be entered again."""
    model: Any = seeded(Net)
    if microbatches == 1:
        cluster = Cluster.virtual(2)
        baechi.distribute(model, (X, Y), cluster=cluster, device_map=WHERE, verbose=False)
    else:
        cluster = pipelined(model, (X, Y), microbatches=2, device_map=WHERE, loss_weights="rows")

    def stepped() -> Tensor:
        with cluster if emulated else contextlib.nullcontext():
            loss: Tensor = model(X, Y)
            assert loss.requires_grad
            return loss.detach()

    stepped()
    expected, before = stepped(), settings()

    def run(interruption: Interruption) -> None:
        try:
            with cluster if emulated else contextlib.nullcontext():
                inside = settings()
                try:
                    with interruption.within():
                        model(X, Y)
                finally:
                    assert settings() == inside, interruption.where
        except Interrupted:
            pass
        assert settings() == before, interruption.where

    count = 0
    for interruption in each_point(SWITCHING, run, 11 if emulated or microbatches > 1 else 2):
        assert torch.equal(stepped(), expected), interruption.where
        count += 1
    assert count > 20


def test_modes_that_were_lost_inside_of_a_cluster() -> None:
    """Whatever the modes are at its end: the caller sees his exception, and a cluster can be entered."""
    cluster = Cluster.virtual(2)
    for lost in (True, False):
        with pytest.raises(Interrupted), cluster:
            if lost:
                pop_dispatch_mode()
            else:
                push_dispatch_mode(cluster.emulation)
            raise Interrupted
        assert not dispatch_modes() and not function_modes()
    with cluster:
        torch.ones(2, device="cpu:1")
