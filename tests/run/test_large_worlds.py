"""Worlds that are large: very long, very wide, more buffers than anybody needs.

The full tier takes a quarter of them; all 2,000 layers in a row, and 500 side by side, are run by

    BAECHI_LARGE=1 python -m pytest --tier full tests/run/test_large_worlds.py
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures.base import noise, seeded
from run.late import late
from run.launched import runtime_of
from run.worlds import crossed
from same import ROUNDING, assert_same, identical, step
from torch import Tensor, nn

import baechi

pytestmark = pytest.mark.full

REORDER = (False, "host", "threads")

LAYERS, ARMS = (2000, 500) if os.environ.get("BAECHI_LARGE") else (500, 125)


class Fan(nn.Module):
    """Layers that all read one tensor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.arms = nn.ModuleList([nn.Linear(4, 4) for _ in range(width)])
        self.head = nn.Linear(4, 2)

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = self.head(torch.stack([arm(input) for arm in self.arms]).sum(0))
        return result


def chain(length: int) -> nn.Module:
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(length)])


def check_on_twelve(build: Callable[[], nn.Module], layers: int, placer: Any, *, waits: bool) -> None:
    """A large model, captured once: inference with each launcher, and a measured training step."""

    def inputs() -> dict[str, Tensor]:
        return {"input": noise(3, 4)}

    cluster = baechi.Cluster.virtual(12, memory="1GiB")
    graph = baechi.profile(seeded(build)(), inputs(), cluster=cluster, training=False, source="estimate")
    assert len(graph) > layers
    plan = baechi.place(graph, cluster, placer)
    assert len(plan.devices_used) == 12
    plain = seeded(build)()
    expected = step(plain, inputs(), training=False)
    for reorder in REORDER:
        model = baechi.assign(seeded(build)(), plan, reorder=reorder)
        assert_same(expected, step(model, inputs(), training=False))
        assert (runtime_of(model).counts.get("deferred", 0) > layers / 2) == (waits and reorder is not False)
    with cluster:
        result = step(model, inputs(), training=True)
    assert_same(step(plain, inputs(), training=True), result, tolerance=ROUNDING)
    assert set(baechi.last_step(model).peak_bytes) == set(cluster.names)


def test_a_chain() -> None:
    """Each layer on another of twelve devices than the one before, as likely as not."""
    check_on_twelve(lambda: chain(LAYERS), LAYERS, "random:0", waits=False)


def test_a_fan() -> None:
    """Layers over twelve devices read one input, the last of them first."""
    check_on_twelve(lambda: Fan(ARMS), ARMS, late, waits=True)


class Tables(nn.Module):
    """Modules that do nothing and hold small buffers, of which a few are read."""

    def __init__(self, modules: int, each: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Module() for _ in range(modules))
        for number, table in enumerate(self.tables):
            for place in range(each):
                table.register_buffer(f"b{place}", torch.full((2,), float(number + place)))
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = crossed(self, x) + self.tables[0].b0.sum() * self.tables[-1].b1.mean()
        result: Tensor = self.norm(hidden)
        return result


def test_twenty_thousand_buffers() -> None:
    """20,000 buffers in 2,000 modules: all on devices, none in the way, and all back afterwards."""
    cluster, plain, model = baechi.Cluster.virtual(3), seeded(lambda: Tables(2000, 10))(), None
    model = seeded(lambda: Tables(2000, 10))()
    graph = baechi.profile(model, noise(3, 8), cluster=cluster, training=True, source="estimate")
    baechi.assign(model, baechi.place(graph, cluster, "random:0"))
    with cluster:
        for _ in range(2):
            outputs = [network(noise(3, 8)) for network in (plain, model)]
        assert identical(outputs[0], outputs[1].cpu())
        assert sum(baechi.last_step(model).peak_bytes.values()) > 20_000 * 8
    baechi.restore(model)
    for one, other in zip(plain.buffers(), model.buffers(), strict=True):
        assert identical(one, other)


def calls_of(function: Callable[[], object]) -> int:
    """How many Python functions a function calls, in all."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def grows(work: Callable[[int], Callable[[], object]]) -> float:
    """The calls that another 200 cost, as a multiple of those that another 100 cost."""
    work(10)()  # what is imported and remembered for good
    counts = [calls_of(work(size)) for size in (100, 200, 400)]
    return (counts[2] - counts[1]) / (counts[1] - counts[0])


def test_assigning_grows_with_the_layers() -> None:
    """Twice as many layers cost about twice as much to assign."""
    cluster = baechi.Cluster.virtual(4)

    def work(size: int) -> Callable[[], object]:
        graph = baechi.LayerGraph()
        for place in range(size):
            graph.add_node(str(place), kind="layer", module=str(place), forward_s=1.0)
        plan = baechi.place(graph, cluster, "random:0")
        return lambda: baechi.assign(chain(size), plan)

    assert grows(work) < 2.3


def test_capturing_grows_with_the_modules() -> None:
    """Twice as many modules that nothing calls cost about twice as much to capture."""
    cluster = baechi.Cluster.virtual(1)

    def work(size: int) -> Callable[[], object]:
        model = Tables(size, 2)
        return lambda: baechi.profile(model, noise(3, 8), cluster=cluster, training=False, source="estimate")

    assert grows(work) < 2.3
