"""What a dry run leaves in the process: memory of tensors without values is no memory of the system."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import baechi
from baechi.torchlib import host_memory

_STATUS = Path("/proc/self/status")

_DROPPING = 12
"""Layers that draw: their random numbers are written, among weights that are not."""


def resident_bytes() -> int:
    """What the system backs of this process's memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", _STATUS.read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system says it in its own way")
def test_tensors_without_values_take_no_memory() -> None:
    layers = [layer for _ in range(_DROPPING) for layer in (nn.Linear(768, 768), nn.Dropout(0.1))]
    with torch.device("meta"):
        model = nn.Sequential(*layers).train()
    x = torch.ones(512, 768)
    cluster = baechi.Cluster.virtual(2, memory="64GiB")
    plan = baechi.place(baechi.profile(model, (x,), cluster=cluster, source="estimate"), cluster, "m-etf")
    baechi.dry_run(model, (x,), plan, optimizer="adam", steps=1)
    before = resident_bytes()
    for _ in range(2):
        baechi.dry_run(model, (x,), plan, optimizer="adam")
    assert resident_bytes() - before < 16 << 20


@pytest.mark.parametrize(
    ("variable", "value", "calls"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072", 0),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072", 0),
        ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 3),
    ],
)
def test_limits_that_a_user_has_chosen_stay(
    variable: str, value: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(host_memory, "_mallopt", lambda: lambda *given: made.append(given))
    monkeypatch.setenv(variable, value)
    with host_memory.large_memory_apart():
        pass
    assert len(made) == calls
