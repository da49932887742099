"""Dispatch on devices that torch keeps apart: right numbers, no access that nothing orders, and each fault."""

import threading
from typing import Any, ClassVar

import pytest
import torch
from architectures.base import noise
from run.pipeline.by_loop import assert_same_gradients
from torch import nn

import baechi
from accelerator import NAMES, ToyMachine
from baechi import AggregateError, HaloTiles, HybridScheduler, RoundRobin

from .devices import cluster, there
from .where import moved

WORKERS = ("inline", "thread")
X = noise(11, 8)


class Net(nn.Module):
    """Two layers; it fails on the devices that a test says."""

    fails: ClassVar[dict[int, BaseException]] = {}

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.fails.get(-1 if x.device.index is None else x.device.index)
        if found is not None:
            raise found
        out: torch.Tensor = self.b(torch.tanh(self.a(x)))
        return out


def plain(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = Net()(x)
        return out


def devices(*sizes: int, capacities: Any = None) -> HybridScheduler:
    return HybridScheduler(list(NAMES[: len(sizes)]), list(sizes), capacities)


@pytest.mark.parametrize("late", [True, False], ids=["late", "clocks"])
@pytest.mark.parametrize("home", ["", NAMES[0], NAMES[3]])
@pytest.mark.parametrize("workers", WORKERS)
def test_chunks_are_the_whole(toy: ToyMachine, workers: Any, home: str, late: bool) -> None:
    """Two chunks in flight on each device; the model is on the host, on a device that works, or on another."""
    for seed in range(3):
        toy.restart(seed=seed, late=late)
        net = moved(Net(), home) if home else Net()
        dispatched = baechi.dispatch(net, devices(2, 1, 2, capacities=[4, 2, 4]), workers=workers)
        with torch.no_grad():
            for x in (X, X + 1):
                found = dispatched(there(x, home))
                assert str(found.device) == (home or "cpu")
                torch.testing.assert_close(found.cpu(), plain(x))
            net.b.bias.add_(1)  # type: ignore[operator,union-attr]
            torch.testing.assert_close(dispatched(there(X, home)).cpu(), plain(X) + 1)


@pytest.mark.parametrize("workers", WORKERS)
def test_gradients_are_added_up(toy: ToyMachine, workers: Any) -> None:
    net, twin = Net().double(), Net().double()
    x = X.double()
    baechi.dispatch(net, devices(3, 1, 2), workers=workers)(x).square().mean().backward()
    twin(x).square().mean().backward()
    toy.synchronize()
    assert_same_gradients(net, twin)


def test_tiles_over_two_devices(toy: ToyMachine) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1)).eval()
    x = noise(1, 1, 40, 40)
    dispatched = baechi.dispatch(net, RoundRobin(2, NAMES[:2]), chunks=HaloTiles(24), workers="thread")
    with torch.no_grad():
        torch.testing.assert_close(dispatched(x), net(x))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_plan_over_two_devices_twice(toy: ToyMachine, workers: Any) -> None:
    """The fault of one device is told with its layer; then both copies work again."""
    net, plans = Net(), []
    for first in (0, 2):
        two = cluster(*NAMES[first : first + 2])
        graph = baechi.profile(Net(), X[:3], cluster=two, source="estimate")
        plans.append(baechi.Plan.from_device_map(graph, two, {"a": 0, "b": 1}))
    dispatched = baechi.dispatch(net, HybridScheduler(plans, [3, 2]), workers=workers)
    with torch.no_grad():
        torch.testing.assert_close(dispatched(there(X)).cpu(), plain(X))
        free = torch.accelerator.memory_allocated(3)
        toy.limit(3, free)
        try:
            with pytest.raises((torch.OutOfMemoryError, AggregateError), match=r"toy:3|chunks failed"):
                dispatched(there(noise(4096, 8)))
        finally:
            toy.limit(3, None)
        torch.testing.assert_close(dispatched(there(X)).cpu(), plain(X))


FAULTS = {
    "one device": ({1: ValueError("one")}, ValueError),
    "two devices": ({0: ValueError("zero"), 1: KeyError("one")}, AggregateError),
    "Ctrl-C": ({1: KeyboardInterrupt()}, KeyboardInterrupt),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_told_and_the_next_call_works(toy: ToyMachine, name: str, workers: Any) -> None:
    fails, kind = FAULTS[name]
    threads = threading.active_count()
    net = Net()
    dispatched = baechi.dispatch(net, devices(1, 1), workers=workers)
    with torch.no_grad():
        dispatched(X)
        Net.fails = fails
        try:
            with pytest.raises(kind) as raised:
                dispatched(X)
        finally:
            Net.fails = {}
        if isinstance(raised.value, AggregateError):
            assert [type(error) for error in raised.value.exceptions] == [ValueError, KeyError]
        else:
            assert raised.value is fails[1]
            assert "in layer (root) (Net) on toy:1" in raised.value.__notes__
        torch.testing.assert_close(dispatched(X), plain(X))
    assert threading.active_count() == threads


@pytest.mark.parametrize("workers", WORKERS)
def test_a_full_device_is_tried_with_less(toy: ToyMachine, workers: Any) -> None:
    """The device holds a quarter of the chunk, what it makes of it, and the input before; no failed try stays."""
    net, x = Net(), noise(4096, 8)
    with torch.no_grad():
        baechi.dispatch(net, devices(2), workers=workers)(X)
        dispatched = baechi.dispatch(net, devices(4096), workers=workers, retry=2)
        dispatched(X)
        toy.synchronize()
        held = torch.accelerator.memory_allocated(0)
        toy.limit(0, held + 1024 * 4 * (2 * 8 + 16 + 16 + 4) + 4096)
        try:
            found = dispatched(x)
            with pytest.raises(torch.OutOfMemoryError, match="toy:0 is out of memory") as raised:
                baechi.dispatch(net, devices(4096), workers=workers)(x)
        finally:
            toy.limit(0, None)
        assert raised.value.recoverable  # type: ignore[attr-defined]
        torch.testing.assert_close(found, plain(x))
        del raised
        dispatched(X)
        toy.synchronize()
        assert torch.accelerator.memory_allocated(0) == held
