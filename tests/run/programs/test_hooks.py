"""Hooks on modules: those that can be followed are in the graph; others see values, so the code runs."""

import copy
import logging
from typing import Any

import pytest
import torch
from run.programs.test_calls import WHERE, Net, X, Y, assert_as, programs, trained
from torch import Tensor, nn

import baechi

STAGES = baechi.Stages(backend="aot_eager")


def hooked(hook: Any, number: int) -> tuple[nn.Module, nn.Module]:
    """A model with a hook on a layer, and a plain copy of it."""
    model, options = Net().double().train(), {}
    model.drop.p = 0.0
    model.b.register_forward_hook(hook)
    model.c.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    plain = copy.deepcopy(model)
    if number > 1:
        options = {"microbatches": number, "coupled": "accept"}
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, (X, Y), cluster=cluster, device_map=WHERE, compile=STAGES, **options)
    return model, plain


@pytest.mark.parametrize("number", [1, 4])
def test_a_hook_that_changes_values(number: int) -> None:
    """It is in the graph; another one that comes later is another graph."""
    model, plain = hooked(lambda _module, _args, made: made * 3, number)
    assert_as(model, plain, X, Y)
    handles = [
        one.get_submodule("a").register_forward_hook(lambda *args: args[2] + 1) for one in (model, plain)
    ]
    assert_as(model, plain, X, Y)
    for handle in handles:
        handle.remove()
    assert_as(model, plain, X, Y)


def test_a_hook_that_keeps_values(caplog: pytest.LogCaptureFixture) -> None:
    """The code runs, which is said once, though programs are asked for."""
    seen: list[Tensor] = []
    model, plain = hooked(lambda _module, _args, made: seen.append(made.detach()), 1)
    seen.clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "baechi"):
        for _ in range(2):
            assert torch.equal(trained(model, X, Y), trained(plain, X, Y))
    assert len(seen) == 4 and torch.equal(seen[0], seen[1]) and not programs(model)
    assert sum("hooks on modules" in record.message for record in caplog.records) == 1
