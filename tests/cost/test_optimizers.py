"""The table of optimizers."""

import logging
from collections.abc import Callable

import pytest
import torch
from place.graphs import graph_of
from torch import nn

import baechi
from baechi import report
from baechi.cost.memory import footprints
from baechi.cost.optimizers import OPTIMIZERS, OptimizerCosts, row_of
from baechi.report.facts import Facts


class Quadruple(torch.optim.SGD):
    """An optimizer that no table knows."""


def distributed(make: Callable[..., torch.optim.Optimizer]) -> baechi.Plan:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(model, torch.ones(2, 4), cluster=cluster, optimizer=make(model.parameters()))
    return baechi.plan_of(model)


def test_a_row_is_all(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With its row an optimizer counts by name and by instance, in ledgers, simulator and report."""
    with caplog.at_level(logging.WARNING):
        assert distributed(Quadruple).graph.graph["optimizer"] == "adam"
    assert "Quadruple: its state is counted as Adam's" in caplog.text
    monkeypatch.setitem(OPTIMIZERS, "quadruple", OptimizerCosts(state_bytes=4, update_bytes=3))
    caplog.clear()

    plan = distributed(Quadruple)
    assert plan.graph.graph["optimizer"] == "quadruple" and not caplog.text
    state_bytes = 4 * plan.graph.total("grad_bytes")
    assert sum(device.optimizer_bytes for device in Facts(plan).devices) == state_bytes
    assert report.to_text(plan)
    leaner = baechi.place(plan.graph, plan.cluster, "single", optimizer="sgd")
    richer = baechi.place(plan.graph, plan.cluster, "single", optimizer="Quadruple")
    more_bytes = sum(richer.timeline.peak_bytes.values()) - sum(leaner.timeline.peak_bytes.values())
    assert more_bytes >= state_bytes
    layer = footprints(graph_of({"a": {"grad_bytes": 10}}, training=True), "quadruple")["a"]
    assert (layer.always_bytes, layer.update_bytes) == (40, 30)


def test_options_choose_the_row() -> None:
    """SGD keeps a state only with momentum, in any of its groups."""
    assert row_of("SGD", [{"momentum": 0.0}, {}]) == "sgd"
    assert row_of("SGD", [{"momentum": 0.0}, {"momentum": 0.9}]) == "momentum"
    assert row_of("AdamW", [{}]) == "adamw" and row_of("Lion", [{}]) is None
    rows = [costs.with_option[1] for costs in OPTIMIZERS.values() if costs.with_option]
    assert set(rows) <= set(OPTIMIZERS)
