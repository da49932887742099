"""Models of the literature compute and learn what they do undistributed, wherever their layers lie."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from architectures import loss_of
from run.every_way import assert_equal, left_by
from torch import nn

import baechi
from baechi.torchlib.tensors.pytree import tensors_in
from literature import LITERATURE

pytestmark = pytest.mark.nightly

DEVICES = 3
PLACERS = ("m-etf", "random:1")
REORDER = (False, "host", "threads")

FITTED = ("DLRM", "Detector", "Glow", "GraphAttention", "MixtureOfExperts", "TreeLSTM")
"""Those whose inputs or code make it hard to say what another batch would take."""

ROUNDING = 1e-10
"""What double precision may lose where three or more gradients are summed in another order."""


@dataclass(frozen=True)
class Trajectory:
    """What two steps leave behind.

    Args:
        first: outputs of the first step.
        second: outputs of the second one.
        left: weights, buffers and gradients after both.
    """

    first: list[torch.Tensor]
    second: list[torch.Tensor]
    left: dict[str, Any]


def two_steps(model: nn.Module, inputs: Callable[[], dict[str, Any]], training: bool) -> Trajectory:
    """Two seeded steps; in training the second one starts where an optimizer's step led."""
    torch.manual_seed(5)
    model.train(training)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    outputs = []
    for _ in range(2):
        with torch.set_grad_enabled(training):
            result = model(**inputs())
        outputs.append([tensor.detach().clone() for tensor in tensors_in(result)])
        if training:
            optimizer.zero_grad()
            loss_of(result).backward()
            optimizer.step()
    return Trajectory(*outputs, left_by(model))


@functools.cache
def plain(name: str, training: bool) -> Trajectory:
    """What the undistributed model does."""
    model = LITERATURE[name]
    return two_steps(model.build(), model.inputs, training)


def cluster() -> baechi.Cluster:
    """Three devices so fast to reach that it is worth to spread even these."""
    near = baechi.Cluster.virtual(DEVICES, link=baechi.Link(latency_s=1e-9, bytes_per_s=1e15))
    return baechi.Cluster(near.devices, link=near.link, emulated=True, launch_s=1e-9)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", LITERATURE)
def test_the_same(name: str, training: bool) -> None:
    """By m-ETF and at random on three devices, in the plan's order, in training in the code's, too.

    In training each launcher runs one of the two placements, with the next model the other one; without
    gradients one of them does.
    """
    model, expected, devices = LITERATURE[name], plain(name, training), cluster()
    graph = baechi.profile(model.build(), model.inputs(), cluster=devices, training=training)
    turn = list(LITERATURE).index(name) % 2
    by_turns = zip((PLACERS * 2)[turn : turn + 3], REORDER, strict=True)
    ways = by_turns if training else [(PLACERS[turn], ("threads", "host")[turn])]
    for placer, reorder in ways:
        plan = baechi.place(graph, devices, placer)
        assert placer == "m-etf" or len(plan.devices_used) > 1
        distributed = baechi.assign(model.build(), plan, reorder=reorder)
        with devices:
            found = two_steps(distributed, model.inputs, training)
        assert_equal(expected.first, found.first)
        tolerance = ROUNDING if training else 0.0
        assert_equal(expected.second, found.second, tolerance)
        assert_equal(expected.left, found.left, tolerance)


@pytest.mark.parametrize("name", LITERATURE)
def test_it_is_placed(name: str) -> None:
    """`auto` places it on three devices, no slower than on one."""
    model, devices = LITERATURE[name], cluster()
    graph = baechi.profile(model.build(), model.inputs(), cluster=devices, source="estimate")
    plan = baechi.place(graph, devices, "auto", effort=0)
    assert plan.timeline.makespan_s <= baechi.place(graph, devices, "single").timeline.makespan_s


@pytest.mark.parametrize("name", FITTED)
def test_it_fits(name: str) -> None:
    """It fits the memory that it takes, and hardly a larger batch does (in another order, it may)."""
    model, one = LITERATURE[name], baechi.Cluster.virtual(1)
    graph = baechi.profile(model.build(), model.inputs(), cluster=one, source="estimate")
    plan = baechi.place(graph, one, "single", optimizer="sgd")
    try:
        timeline = baechi.dry_run(model.build(), model.inputs(), plan)
    except baechi.DryRunError:  # it decides by values
        timeline = plan.timeline
    needed_bytes = timeline.peak_bytes["cpu:0"]
    full = baechi.Cluster.virtual(1, memory=needed_bytes)
    answer = baechi.fits(model.build(), model.inputs(), full, optimizer="sgd")
    assert answer, answer
    if answer.largest_batch is not None and answer.batch is not None:
        assert answer.batch <= answer.largest_batch <= 1.2 * answer.batch, answer
