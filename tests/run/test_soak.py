"""A soak: many steps, and nothing grows.

The nightly tier does 80 steps in each of the three ways; all of the 2,000 are done by

    BAECHI_SOAK_STEPS=2000 python -m pytest --tier nightly tests/run/test_soak.py -s
"""

import gc
import os
import sys
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import ReferenceType

import pytest
import torch
from run.every_way import Way, batch, rig
from run.launched import runtime_of
from torch import nn

import baechi
from baechi.backend.virtual import current

pytestmark = pytest.mark.nightly

STEPS = int(os.environ.get("BAECHI_SOAK_STEPS", "80"))
EARLY = max(20, STEPS // 20)
"""From which step on nothing may grow: caches are filled, the optimizer has its state."""

ROOM_BYTES = 16 * 2**20
"""By how much the process may grow all the same: the emulator's notes come to 8 MiB (see `Held`), no more."""

WAYS = {
    "host": (Way("random:3", "host"), True),
    "threads": (Way("random:3", "threads"), True),
    "outside": (Way("random:3", "host"), False),
}


@dataclass(frozen=True)
class Held:
    """What a process holds, and what a step costs it.

    Args:
        threads: how many.
        files: open handles.
        tensors: alive.
        objects: known to the garbage collector; without tuples and weak references, since the emulator
            notes for the last 100,000 layers which autograd nodes they made, of which step.
        live_bytes: by device, on the emulated cluster.
        resident_bytes: of the whole process.
        calls: of Python functions during one step, in all of its threads.
        step_s: that one step takes by the emulated clock.
    """

    threads: int
    files: int
    tensors: int
    objects: int
    live_bytes: dict[str, int]
    resident_bytes: int
    calls: int
    step_s: float


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def counted(run: Any) -> int:
    """How many functions are called while something runs; a number that no clock has a part in."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def look(run: Any, model: nn.Module) -> Held:
    """Do one step under a count of its calls, and look at what is held after it."""
    gc.collect()
    gc.disable()  # what it calls is no part of a step
    calls = counted(run)
    gc.enable()
    gc.collect()
    alive, emulator = gc.get_objects(), current.at_work()
    return Held(
        threading.active_count(),
        len(os.listdir("/proc/self/fd")),
        sum(issubclass(type(one), torch.Tensor) for one in alive),
        sum(type(one) not in (tuple, ReferenceType) for one in alive),
        {} if emulator is None else dict(emulator.allocator.live_bytes),
        resident_bytes(),
        calls,
        0.0 if emulator is None else baechi.last_step(model).makespan_s,
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts by /proc")
@pytest.mark.parametrize("name", WAYS)
def test_nothing_grows(name: str) -> None:
    """Threads, files, tensors, bytes and the work of a step are after many steps what they were after few."""
    way, inside = WAYS[name]
    model, cluster = way.distribute(rig, batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = batch()

    def run() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    with cluster if inside else nullcontext():
        for _ in range(EARLY):
            run()
        early = look(run, model)
        for _ in range(STEPS - EARLY - 2):
            run()
        late = look(run, model)
    assert runtime_of(model).counts["deferred"] > 0
    print(f"{name}: {early} after {EARLY} steps, {late} after {STEPS}")
    assert (late.threads, late.files, late.tensors) == (early.threads, early.files, early.tensors)
    assert late.objects <= early.objects + 50
    assert late.live_bytes == early.live_bytes
    assert late.resident_bytes <= early.resident_bytes + ROOM_BYTES
    handovers = (
        1e-3 if name == "threads" else 0.0
    )  # who waits for another thread calls more, if that one is late
    assert late.calls == pytest.approx(early.calls, rel=handovers, abs=0)
    assert late.step_s == pytest.approx(early.step_s, rel=1e-6)


def test_a_pipeline_does_not_grow_with_steps_or_shapes() -> None:
    """Neither many steps of one batch nor lengths that take turns leave anything behind in the process."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)])
    cluster = baechi.Cluster.virtual(2)
    where = {f"{index}": index // 3 for index in range(6)}
    baechi.distribute(
        model, torch.ones(8, 4, 16), cluster=cluster, device_map=where, microbatches=4,
        loss=nn.functional.mse_loss,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def run(length: int = 4) -> None:
        optimizer.zero_grad()
        model(torch.ones(8, length, 16), target=torch.zeros(8, length, 16)).backward()
        optimizer.step()

    for lengths in ([4], range(5, 15)):
        with cluster:
            for step in range(EARLY):
                run(lengths[step % len(lengths)])
            early = look(run, model)
            for step in range(EARLY, STEPS - 2):
                run(lengths[step % len(lengths)])
            late = look(run, model)
        print(f"{early} after {EARLY} steps, {late} after {STEPS}")
        assert (late.threads, late.files, late.tensors) == (early.threads, early.files, early.tensors)
        assert late.objects <= early.objects + 50
        assert late.live_bytes == early.live_bytes
        assert late.resident_bytes <= early.resident_bytes + ROOM_BYTES
