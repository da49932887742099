"""The chain placer: each device gets a contiguous stretch of the model, cut where transfers are cheapest.

    groups   g0 g1 g2 | g3 g4 g5 g6 | g7        a dynamic program over the cuts: for every device and
    devices     d0          d1         d2       every place where its stretch could end, the least
                                                work and travel so far

It counts no overlap. So it is exact for chains, whose layers run one after the other anyway, and a good
start for other graphs. Groups are sorted by their first layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baechi.place.bottom_level import bottom_level_order
from baechi.place.ledger import open_ledger
from baechi.place.placers.rescue import rescue
from baechi.place.problem import ANYWHERE, Problem
from baechi.records import Cluster, LayerGraph, Plan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_PLACES = 400
"""The most cut positions that are tried, evenly spread."""

_FULLNESS = (1.0, 0.9, 0.8)
"""Fractions of memory that stretches may fill, in turn. Received copies are counted only afterwards."""


def chain(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """Place stretches of the model on one device after the other; see `Placer`."""
    problem = Problem(graph, cluster, optimizer)
    stuck = 0
    for fullness in _FULLNESS:
        device_of = cut(problem, fullness)
        if device_of is None:
            break
        for order in (bottom_level_order(problem, device_of), range(len(problem.indexed))):
            short = _first_without_room(problem, device_of, order)
            if short is None:
                return problem.plan("chain", device_of, order)
            stuck = short
    return rescue(problem, "chain", stuck)


def _first_without_room(problem: Problem, device_of: Sequence[int], order: Sequence[int]) -> int | None:
    """The first layer that does not fit when all run in this order; None if all fit."""
    ledger = open_ledger(problem, device_of)
    for layer in order:
        if ledger.short_bytes(layer, device_of[problem.indexed.group_of[layer]]) > 0:
            return layer
        ledger.run(layer)
    return None


@dataclass(frozen=True, slots=True)
class _Sums:
    """Prefix sums of costs: a difference of two gives the cost of a stretch.

    Args:
        work_s: by device and end, seconds of the groups before.
        bytes: by end, permanent bytes of the groups before.
        top_bytes: by group, bytes on top of these while it runs.
        travel_s: by end, seconds of the transfers that cross a cut there.
    """

    work_s: Floats
    bytes: Ints
    top_bytes: Ints
    travel_s: Floats


def cut(problem: Problem, fullness: float = 1.0) -> list[int] | None:
    """Find the best cut."""
    groups = len(problem.indexed.members)
    sums = _sums(problem)
    places = np.unique([round(i * groups / MOST_PLACES) for i in range(MOST_PLACES + 1)])
    best = np.where(places == 0, 0.0, np.inf)
    came: list[Ints] = []
    for device in problem.devices:
        best, chosen = _with_device(problem, sums, device, places, best, fullness)
        came.append(chosen)
    if best[-1] == np.inf:
        return None
    device_of = np.zeros(groups, np.int64)
    end = len(places) - 1
    for device in reversed(problem.devices):
        begin = came[device][end]
        device_of[places[begin] : places[end]] = device
        end = begin
    return device_of.tolist()


def _with_device(
    problem: Problem, sums: _Sums, device: int, places: Ints, best: Floats, fullness: float
) -> tuple[Floats, Ints]:
    """The least cost up to each end with one more device, and where that device's stretch begins."""
    limit = problem.memory_bytes[device] * fullness
    foreign = np.array([pin not in (ANYWHERE, device) for pin in problem.pins], np.bool_)
    tops, torn = (
        np.maximum.reduceat(sums.top_bytes, places[:-1]),
        np.logical_or.reduceat(foreign, places[:-1]),
    )
    work_s, kept_bytes = sums.work_s[device][places], sums.bytes[places]
    result, chosen = best.copy(), np.arange(len(places))  # the device may stay empty
    for begin in np.flatnonzero(best[:-1] < np.inf):
        needed = kept_bytes[begin + 1 :] - kept_bytes[begin] + np.maximum.accumulate(tops[begin:])
        fits = np.logical_and.accumulate((needed <= limit) & ~torn[begin:])
        ends = begin + 1 + np.flatnonzero(fits)
        cost_s = best[begin] + work_s[ends] - work_s[begin] + sums.travel_s[places[ends]]
        less = cost_s < result[ends]
        result[ends[less]], chosen[ends[less]] = cost_s[less], begin
    return result, chosen


def _sums(problem: Problem) -> _Sums:
    indexed, groups = problem.indexed, len(problem.indexed.members)
    work_s = [[0.0] * (groups + 1) for _ in problem.devices]
    kept = [0] * (groups + 1)
    tops = []
    for group, members in enumerate(indexed.members):
        for device in problem.devices:
            work_s[device][group + 1] = work_s[device][group] + sum(
                [problem.work_s[device][m] for m in members]
            )
        part = problem.group_bytes[group]
        kept[group + 1] = kept[group] + part.permanent_bytes
        tops.append(max(part.forward_bytes, part.backward_bytes))
    change = [0.0] * (groups + 2)
    pairs = [(a, b) for a, b in zip(problem.devices, list(problem.devices)[1:], strict=False)]
    for tensor, maker in enumerate(indexed.source):
        if maker < 0 or not pairs:
            continue
        size = indexed.size_bytes[tensor]
        seconds = sum([problem.travel_s(a, b, size) for a, b in pairs]) / len(pairs)
        home = indexed.group_of[maker]
        readers = [indexed.group_of[reader] for reader in indexed.consumers[tensor]]
        low, high = min(home, *readers), max(home, *readers)
        change[low + 1] += seconds  # it crosses every cut between its first and last group
        change[high + 1] -= seconds
    travel_s = np.cumsum(change[: groups + 1])
    travel_s[groups] = 0.0  # the model ends there
    return _Sums(np.array(work_s), np.array(kept), np.array(tops), travel_s)
