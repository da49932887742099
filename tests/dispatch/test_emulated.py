"""4,608 rows over a fast and a slow emulated device, by the emulated clock."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

import baechi
from baechi.dispatch.schedulers.abstract import AbstractScheduler, Left, Share
from baechi.dispatch.schedulers.targets import targets_of

ROWS = 4608
X = torch.zeros(ROWS, 16)
FLOPS_PER_S = 1e9
"""Slow enough that a small model takes its time; the host's launches take little beside it."""


class Split(AbstractScheduler):
    """So many rows for each device, in one chunk; what earliest finish is compared with."""

    def __init__(self, cluster: baechi.Cluster, parts: Sequence[int]) -> None:
        super().__init__(targets_of(cluster))
        self._parts = dict(zip(self.load, parts, strict=True))

    def _choose(self, left: Left) -> Share | None:
        for name, items in self._parts.items():
            if items and not self.chunks[name] and left.items in (ROWS, items):
                return Share(name, items)
        return None


def fast_and_slow(slower: float) -> baechi.Cluster:
    cluster = baechi.Cluster.virtual(2)
    speeds = [FLOPS_PER_S, FLOPS_PER_S / slower]
    devices = [
        replace(device, flops_per_s={"float32": speed})
        for device, speed in zip(cluster.devices, speeds, strict=True)
    ]
    return replace(cluster, devices=tuple(devices))


def seconds(cluster: baechi.Cluster, scheduler: AbstractScheduler) -> tuple[float, ...]:
    """Of the first call, for which weights travel, and of the second, by the emulated clock."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
    dispatched = baechi.dispatch(model, scheduler, workers="thread")
    with cluster, torch.no_grad():
        clock_s = [0.0]
        for _ in range(2):
            dispatched(X)
            clock_s.append(cluster.emulation.now_s)
    return clock_s[1], clock_s[2] - clock_s[1]


@pytest.mark.parametrize("slower", [1.0, 3.0, 20.0, 1000.0])
def test_earliest_finish_is_near_the_best_split_and_never_above_the_fast_device(slower: float) -> None:
    cluster = fast_and_slow(slower)
    share = ROWS / (1 + slower)
    alone_s = seconds(cluster, Split(cluster, [ROWS, 0]))
    tried = [round(share * part) for part in (0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1)]
    splits = [seconds(cluster, Split(cluster, [ROWS - rows, rows])) for rows in tried]
    best_s = [min(of_call) for of_call in zip(alone_s, *splits, strict=True)]
    for sizes in ([4096, 512], [512, 512], [ROWS, ROWS]):
        scheduler = baechi.HybridScheduler(cluster, sizes, policy="earliest_finish")
        fast_s = seconds(cluster, baechi.SimpleScheduler("cpu:0", sizes[0]))
        for taken, best, fast in zip(seconds(cluster, scheduler), best_s, fast_s, strict=True):
            assert taken <= 1.05 * best, (sizes, taken / best)
            assert taken <= fast, (sizes, taken / fast)


@pytest.mark.parametrize("gpu", ["H100-80GB", "RTX-3090"])
def test_a_device_that_saves_less_than_its_pace_is_known_gets_nothing(gpu: str) -> None:
    """A CPU beside a GPU, by their datasheets."""
    cluster = baechi.Cluster.virtual(like=[gpu, "CPU"])
    scheduler = baechi.HybridScheduler(cluster, 512, policy="earliest_finish")
    assert seconds(cluster, scheduler) <= seconds(cluster, baechi.SimpleScheduler("cpu:0", 512))


def test_emulated_a_run_with_threads_repeats_exactly() -> None:
    cluster = fast_and_slow(3.0)
    found = [
        seconds(cluster, baechi.HybridScheduler(cluster, [512, 256], policy="earliest_finish"))
        for _ in range(2)
    ]
    assert found[0] == found[1]


def test_twice_the_capacity_lets_the_next_chunk_travel_while_one_computes() -> None:
    """Two chunks in flight hide the way there and back; one shows it each time."""
    cluster = fast_and_slow(1.0)
    found = {}
    for capacity in (512, 1024):
        scheduler = baechi.SimpleScheduler("cpu:0", 512, capacity=capacity)
        found[capacity] = seconds(cluster, scheduler)[1]
    assert found[1024] < found[512]
