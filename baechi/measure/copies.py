"""Links of a cluster by timed copies: what a byte costs, and what the first one waits for.

seconds
   |            *        a line through the times of several sizes, least squares of the
   |       *             relative error (else the largest size alone would decide):
   |   *                 where it meets the axis is the latency, its slope seconds per byte
   +--------------- bytes
"""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import torch

from baechi.backend import AbstractBackend, backend_of, is_here
from baechi.backend.real.link_cache import keep
from baechi.backend.real.stopwatch import Stopwatch
from baechi.backend.real.streams import device_behind
from baechi.backend.transfer import transfer
from baechi.errors import BaechiError
from baechi.measure.launch import launch_seconds
from baechi.progress import progress
from baechi.records.cluster import HOST, Cluster
from baechi.records.device import Link

logger = logging.getLogger(__name__)

SIZES = tuple([4**power for power in range(5, 14)])
"""Bytes, from a kibibyte to 64 mebibytes."""


def links(
    cluster: Cluster, *, sizes: Sequence[int] = SIZES, rounds: int = 5, save: bool | str | Path = False
) -> Cluster:
    """Measure every link of a cluster, those from and to the host among them."""
    if len(set(sizes)) < 2 or rounds < 1:
        raise ValueError(f"{len(set(sizes))} sizes and {rounds} rounds: a line takes two sizes and a round")
    if save is True and cluster.emulated:
        raise ValueError("an emulated cluster has no links of this machine to keep: give save= a path")
    backend = _backend(cluster)
    ends = [*cluster.names] if backend.host in cluster.names else [*cluster.names, HOST]
    pairs = list(permutations(ends, 2))
    found: dict[tuple[str, str], Link] = {}
    of_devices: dict[tuple[Any, Any], Link] = {}  # parts of GPUs have the links of these
    with cluster if cluster.emulated else nullcontext(), progress("measuring links", len(pairs)) as advance:
        for source, target in pairs:
            behind = (_behind(cluster, source), _behind(cluster, target))
            if behind not in of_devices:
                room = min([cluster.device(end).memory_bytes for end in (source, target) if end != HOST])
                fitting = sorted({size for size in sizes if 2 * size <= room})
                times_s = [_copy_s(backend, source, target, size, rounds) for size in fitting]
                peer = cluster.link_between(source, target).peer
                of_devices[behind] = fit(fitting, times_s, peer=peer)
            found[source, target] = of_devices[behind]
            advance()
    logger.info("measured %d links", len(found))
    measured = replace(cluster, links={**cluster.links, **found}, launch_s=_launch_s(cluster))
    if save is True:
        keep(measured)
    elif save:
        measured.save(save)
    return measured


def fit(sizes: Sequence[int], times_s: Sequence[float], *, peer: bool = True) -> Link:
    """The link that explains some copies best."""
    if len(set(sizes)) < 2:
        raise ValueError(f"copies of {len(set(sizes))} sizes make no line: give a smaller size as well")
    weights = [1 / max(taken_s, 1e-12) ** 2 for taken_s in times_s]
    total = sum(weights)
    mean_size = sum(w * size for w, size in zip(weights, sizes, strict=True)) / total
    mean_s = sum(w * taken_s for w, taken_s in zip(weights, times_s, strict=True)) / total
    rows = list(zip(weights, sizes, times_s, strict=True))
    spread = sum([w * (size - mean_size) ** 2 for w, size, _ in rows])
    slope = sum([w * (size - mean_size) * (taken_s - mean_s) for w, size, taken_s in rows]) / spread
    if slope <= 0:  # larger copies took no longer: as fast as the fastest
        slope = min([taken_s / size for _, size, taken_s in rows])
    latency_s = max(0.0, mean_s - slope * mean_size)
    off = [abs(latency_s + slope * size - taken_s) / taken_s for _, size, taken_s in rows if taken_s]
    rate = 1 / slope if slope > 1e-24 else inf  # so little is rounding
    return Link(latency_s, rate, peer, residual=max(off, default=0.0))


def _launch_s(cluster: Cluster) -> float:
    for name in () if cluster.emulated else cluster.names:
        watch = Stopwatch(device_behind(name))
        if watch.has_streams:
            return launch_seconds(watch)
    return cluster.launch_s


def _behind(cluster: Cluster, end: str) -> Any:
    """What torch copies from or to: a whole GPU, if the end is a part of it."""
    return end if cluster.emulated or end == HOST else device_behind(end)


def _backend(cluster: Cluster) -> AbstractBackend:
    for name in () if cluster.emulated else cluster.names:
        if not is_here(name):
            raise BaechiError(
                f"device {name} is not in this machine, so its links cannot be measured: "
                "give them as Link(latency_s, bytes_per_s)"
            )
    return backend_of(cluster)


def _copy_s(backend: AbstractBackend, source: str, target: str, size: int, rounds: int) -> float:
    tensor = torch.zeros(size, dtype=torch.uint8, device="cpu")
    if source != HOST:
        tensor = transfer(tensor, backend, source)
    place = backend.host if target == HOST else target
    with torch.no_grad():
        return median([backend.copy_s(tensor, place) for _ in range(rounds + 1)][1:])
