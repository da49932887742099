"""The chain placer: each device gets a stretch of the model, cut where least has to travel.

    groups   g0 g1 g2 | g3 g4 g5 g6 | g7        a dynamic program over the cuts: for every device and
    devices     d0          d1         d2       every place where its stretch could end, the least
                                                work and travel so far

It counts no overlap, so it is exact for chains, on which layers run one after the other anyway, and
a sound start for others. Groups stand in the order of their first layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from baechi.place.books import open_ledger
from baechi.place.bottom_level import bottom_level_order
from baechi.place.rescue import rescue
from baechi.place.task import ANYWHERE, Task
from baechi.records import Cluster, LayerGraph, Plan

MOST_PLACES = 400
"""Cuts are tried at so many places at most, evenly spread."""

_FULLNESS = (1.0, 0.9, 0.8)
"""Parts of the memory that stretches may fill, in turn: what they receive is counted only afterwards."""


def chain(graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """Place stretches of the model on one device after the other; see `Placer`.

    Args:
        graph: the layer graph.
        cluster: the devices, in the order in which they are filled; some may stay empty.
        optimizer: whose state counts in training.

    Returns:
        A plan.

    Raises:
        PlacementError: no plan was found that fits.
    """
    task = Task(graph, cluster, optimizer)
    stuck = 0
    for fullness in _FULLNESS:
        device_of = cut(task, fullness)
        if device_of is None:
            break
        for order in (bottom_level_order(task, device_of), range(len(task.indexed))):
            short = _first_without_room(task, device_of, order)
            if short is None:
                return task.plan("chain", device_of, order)
            stuck = short
    return rescue(task, "chain", stuck)


def _first_without_room(task: Task, device_of: Sequence[int], order: Sequence[int]) -> int | None:
    """The first layer that finds no room when all run in this order; None if all do."""
    ledger = open_ledger(task, device_of)
    for layer in order:
        if ledger.short_bytes(layer, device_of[task.indexed.group_of[layer]]) > 0:
            return layer
        ledger.run(layer)
    return None


@dataclass(frozen=True, slots=True)
class _Sums:
    """What stretches cost, by where they end: differences give that of any stretch.

    Args:
        work_s: by device and end.
        bytes: by end, what always stays of the groups before.
        top_bytes: by group, what comes on top while it runs.
        travel_s: by end, what crosses a cut there.
    """

    work_s: list[list[float]]
    bytes: list[int]
    top_bytes: list[int]
    travel_s: list[float]


def cut(task: Task, fullness: float = 1.0) -> list[int] | None:
    """The best cut.

    Args:
        task: what is to be placed.
        fullness: the part of each device's memory that its stretch may fill.

    Returns:
        By group, its device; None if no cut fits.
    """
    groups = len(task.indexed.members)
    sums = _sums(task)
    places = sorted({round(i * groups / MOST_PLACES) for i in range(MOST_PLACES + 1)} | {groups})
    best: list[float] = [0.0 if place == 0 else float("inf") for place in places]
    came: list[list[int]] = []
    for device in task.devices:
        best, chosen = _with_device(task, sums, device, places, best, fullness)
        came.append(chosen)
    if best[-1] == float("inf"):
        return None
    device_of = [0] * groups
    end = len(places) - 1
    for device in reversed(task.devices):
        begin = came[device][end]
        device_of[places[begin] : places[end]] = [device] * (places[end] - places[begin])
        end = begin
    return device_of


def _with_device(
    task: Task, sums: _Sums, device: int, places: Sequence[int], best: Sequence[float], fullness: float
) -> tuple[list[float], list[int]]:
    """The least cost up to each place with one device more, and where its stretch begins."""
    limit = task.memory_bytes[device] * fullness
    result, chosen = list(best), list(range(len(places)))  # the device may stay empty
    for begin in range(len(places) - 1):
        if best[begin] == float("inf"):
            continue
        first, top = places[begin], 0
        for end in range(begin + 1, len(places)):
            for group in range(places[end - 1], places[end]):
                top = max(top, sums.top_bytes[group])
            last = places[end]
            torn = any(task.pins[g] not in (ANYWHERE, device) for g in range(places[end - 1], last))
            if torn or sums.bytes[last] - sums.bytes[first] + top > limit:
                break
            travel_s = sums.travel_s[last] if last < len(sums.top_bytes) else 0.0
            cost = best[begin] + sums.work_s[device][last] - sums.work_s[device][first] + travel_s
            if cost < result[end]:
                result[end], chosen[end] = cost, begin
    return result, chosen


def _sums(task: Task) -> _Sums:
    indexed, groups = task.indexed, len(task.indexed.members)
    work_s = [[0.0] * (groups + 1) for _ in task.devices]
    kept = [0] * (groups + 1)
    tops = []
    for group, members in enumerate(indexed.members):
        for device in task.devices:
            work_s[device][group + 1] = work_s[device][group] + sum([task.work_s[device][m] for m in members])
        part = task.group_bytes[group]
        kept[group + 1] = kept[group] + part.permanent_bytes
        tops.append(max(part.forward_bytes, part.backward_bytes))
    change = [0.0] * (groups + 2)
    pairs = [(a, b) for a, b in zip(task.devices, list(task.devices)[1:], strict=False)]
    for tensor, maker in enumerate(indexed.source):
        if maker < 0 or not pairs:
            continue
        size = indexed.size_bytes[tensor]
        seconds = sum([task.travel_s(a, b, size) for a, b in pairs]) / len(pairs)
        home = indexed.group_of[maker]
        readers = [indexed.group_of[reader] for reader in indexed.consumers[tensor]]
        low, high = min(home, *readers), max(home, *readers)
        change[low + 1] += seconds  # every cut behind the first and before the last is crossed
        change[high + 1] -= seconds
    travel_s, crossing = [0.0] * (groups + 1), 0.0
    for place in range(groups + 1):
        crossing += change[place]
        travel_s[place] = crossing
    return _Sums(work_s, kept, tops, travel_s)
