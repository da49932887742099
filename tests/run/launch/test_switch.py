"""Reordering is switched on and off: by argument, environment and context."""

from typing import Any

import pytest
import torch
from order.interleaved import distribute
from run.launch.translator import DEVICES, EARLY_DECODER, Translator
from run.launched import LAUNCHERS, runtime_of
from torch import Tensor, nn

import baechi


def distributed(reorder: Any = True) -> tuple[nn.Module, baechi.Cluster, tuple[Tensor, ...]]:
    """A translator whose plan lets the decoder start early, its devices, and inputs."""
    torch.manual_seed(0)
    model, inputs = Translator(8), (torch.ones(2, 8), torch.ones(2, 8))
    return model, distribute(model, inputs, DEVICES, EARLY_DECODER, reorder=reorder), inputs


def order_of_spans(model: nn.Module, device: str) -> list[str]:
    """The layers that a device computed in the last step, as measured."""
    spans = baechi.last_step(model).spans
    return [s.layer for s in spans if s.where == device and s.kind == "compute" and s.layer]


IN_CODE_ORDER, IN_PLAN_ORDER = ["e2", "e3", "d0", "d1"], ["d0", "d1", "e2", "e3"]


def test_reordering_is_on_by_default() -> None:
    """Without being told, a distributed model launches in the plan's order."""
    model, cluster, inputs = distributed()
    with cluster:
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_PLAN_ORDER
    assert baechi.last_step(model).counters["deferred"] == 2


def test_reorder_false() -> None:
    """With `reorder=False` layers launch as the code reaches them, and nothing waits."""
    model, cluster, inputs = distributed(reorder=False)
    with cluster:
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_CODE_ORDER
    assert runtime_of(model).counts == {}


@pytest.mark.parametrize("value", ["0", "false", "OFF"])
def test_the_environment_switches_it_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `BAECHI_REORDER=0` nothing waits; it is read at each step."""
    model, cluster, inputs = distributed()
    monkeypatch.setenv("BAECHI_REORDER", value)
    with cluster:
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_CODE_ORDER
        monkeypatch.setenv("BAECHI_REORDER", "1")
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_PLAN_ORDER


@pytest.mark.parametrize("reorder", [*LAUNCHERS, True])
def test_the_context_manager_switches_it_off(reorder: Any) -> None:
    """Inside `with reordering(model, False)` nothing waits; after it all is as before."""
    model, cluster, inputs = distributed(reorder)
    with cluster:
        for on, expected in ((False, IN_CODE_ORDER), (True, IN_PLAN_ORDER)):
            with baechi.reordering(model, on):
                model(*inputs)
                assert order_of_spans(model, "cpu:1") == expected
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_PLAN_ORDER
    threads = baechi.last_step(model).counters["threads"]
    assert threads == (2 if reorder == "threads" else 0)


def test_the_context_manager_switches_it_on() -> None:
    """A model that does not reorder does inside `with reordering(model, True)`, also where a step raises."""
    model, cluster, inputs = distributed(reorder=False)
    with cluster:
        with pytest.raises(TypeError), baechi.reordering(model, True):
            model(*inputs, "one too many")
        with baechi.reordering(model, True):
            model(*inputs)
            assert order_of_spans(model, "cpu:1") == IN_PLAN_ORDER
        model(*inputs)
        assert order_of_spans(model, "cpu:1") == IN_CODE_ORDER
