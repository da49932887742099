"""Dispatch on devices that torch keeps apart: right numbers, no access that nothing orders, each fault."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from architectures.base import noise
from matrix import pairs_by_tier
from run.pipeline.by_loop import assert_same_gradients
from torch import nn

import baechi
from accelerator import NAMES, ToyMachine
from baechi import AggregateError, HaloTiles, HybridScheduler, RoundRobin
from baechi.backend.real.devices import TorchDevices

from . import dispatched_net
from .devices import cluster, there
from .dispatched_net import Net
from .where import moved

pytestmark = pytest.mark.default_cases(1)

WORKERS = ("inline", "thread")
X = noise(11, 8)


def plain(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = Net()(x)
        return out


def devices(*sizes: int, capacities: Any = None) -> HybridScheduler:
    return HybridScheduler(list(NAMES[: len(sizes)]), list(sizes), capacities)


@pytest.mark.parametrize(
    ("workers", "home", "late"), pairs_by_tier(WORKERS, ["", NAMES[0], NAMES[3]], [True, False])
)
def test_chunks_are_the_whole(toy: ToyMachine, workers: Any, home: str, late: bool) -> None:
    """Two chunks in flight on each device; the model is on the host, on one that works, or on another."""
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
    "two devices": ({0: ValueError("zero"), 1: KeyError("one")}, (AggregateError, ValueError, KeyError)),
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
        elif name == "two devices":  # a thread was told to stop before its own chunk failed
            assert workers == "thread" and raised.value in fails.values()
        else:
            assert raised.value is fails[1]
            assert "in layer (root) (Net) on toy:1" in raised.value.__notes__
        torch.testing.assert_close(dispatched(X), plain(X))
    assert threading.active_count() == threads


@pytest.mark.parametrize("workers", WORKERS)
def test_a_full_device_is_tried_with_less(toy: ToyMachine, workers: Any) -> None:
    """The device holds a quarter of the chunk, what it makes of it, and the input before; no failed try."""
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
            with baechi.dispatch(net, devices(4096), workers=workers) as once:
                with pytest.raises(torch.OutOfMemoryError, match="toy:0 is out of memory") as raised:
                    once(x)
        finally:
            toy.limit(0, None)
        assert raised.value.recoverable  # type: ignore[attr-defined]
        torch.testing.assert_close(found, plain(x))
        del raised
        dispatched(X)
        toy.synchronize()
        assert torch.accelerator.memory_allocated(0) <= held


LINK_S, COMPUTE_S = 1e-3, 2e-3
"""Of a chunk: its way to the device and its layers, all else takes next to nothing."""


@pytest.mark.parametrize("workers", WORKERS)
def test_the_next_chunk_travels_while_one_computes(toy: ToyMachine, workers: Any) -> None:
    """N-32: of six chunks all ways but the first are hidden where two chunks may be in flight."""
    taken_s = {}
    for capacity in (2, 4):
        toy.restart(late=False)
        scheduler = baechi.SimpleScheduler(NAMES[0], 2, capacity=capacity)
        dispatched = baechi.dispatch(Net(), scheduler, workers=workers)
        with torch.no_grad():
            dispatched(X)
            toy.synchronize()
            toy.set_times(
                launch_s=1e-6,
                kernel_s=1e-6,
                bytes_per_s=1e15,
                kernels={"aten::addmm": COMPUTE_S / 2},
                links={(-1, 0): (LINK_S, 1e15), (0, -1): (1e-6, 1e15)},
            )
            begun_s = toy.host_s()
            dispatched(X)
            taken_s[capacity] = toy.host_s() - begun_s
    assert taken_s[2] == pytest.approx(6 * (LINK_S + COMPUTE_S), rel=0.05)
    assert taken_s[4] == pytest.approx(LINK_S + 6 * COMPUTE_S, rel=0.05)


WAITS = {
    "results wait for what made them": (TorchDevices, "wait", lambda *_: None),
    "sent memory is not reused before it was read": (TorchDevices, "use", lambda *_: None),
}


@pytest.mark.parametrize("name", [None, *WAITS])
def test_each_wait_is_needed(toy: ToyMachine, monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """Without it, an access is unordered; with all of them, none is."""
    toy.restart(late=False)
    if name is not None:
        monkeypatch.setattr(*WAITS[name])
    with torch.no_grad():
        dispatched = baechi.dispatch(moved(Net(), NAMES[3]), devices(2, 1, capacities=[4, 2]))
        for _ in range(2):
            dispatched(there(X, NAMES[2]))
    found = toy.faults()
    toy.restart(late=False)
    assert bool(found) == (name is not None), found


@contextmanager
def one_process(timeout: float) -> Iterator[baechi.Dispatched]:
    """A worker process with a device, in a machine of its own; none is left afterwards."""
    children = set(multiprocessing.active_children())
    given = {"scheduler": HybridScheduler([NAMES[1]], 6), "workers": "process", "out": ("cat", 0)}
    with baechi.dispatch(dispatched_net.on_toy, timeout=timeout, **given) as pool, torch.no_grad():  # type: ignore[arg-type]
        yield pool
    assert set(multiprocessing.active_children()) <= children


@pytest.mark.full
@pytest.mark.timeout(120)
def test_faults_of_a_worker_process_on_a_device(toy: ToyMachine) -> None:
    with one_process(timeout=30) as pool:
        torch.testing.assert_close(pool(X), plain(X))
        with pytest.raises(ValueError, match="told to") as raised:
            pool(X, "raise")
        assert "in layer (root) (Net) on toy:1" in raised.value.__notes__
        with pytest.raises(baechi.WorkerError, match="was interrupted"):
            pool(X, "interrupt")
        torch.testing.assert_close(pool(X), plain(X))
        for told, code in ("exit", 9), ("kill", -signal.SIGKILL):
            with pytest.raises(baechi.WorkerError) as died:
                pool(X, told)
            assert died.value.exit_code == code
            torch.testing.assert_close(pool(X), plain(X))


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_worker_process_that_hangs_on_a_device_is_ended(toy: ToyMachine) -> None:
    """The timeout holds for a chunk, not for the start of its worker."""
    with one_process(timeout=6) as pool:
        with pytest.raises(baechi.WorkerError, match="toy:1 took longer than the timeout of 6 s"):
            pool(X, "hang")
        torch.testing.assert_close(pool(X), plain(X))
