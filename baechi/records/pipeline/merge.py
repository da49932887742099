"""Orders of devices, made into one list for the host."""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

import networkx as nx

from baechi.errors import PlanError
from baechi.records.pipeline.dependencies import comes_after, described, once_faults
from baechi.records.pipeline.units import Task, Units


def merged(
    units: Units,
    names: Sequence[str],
    microbatches: int,
    lines: Sequence[Sequence[Task]],
    start_s: Mapping[Task, float] | None = None,
    *,
    keeps_lines: bool = True,
) -> tuple[Task, ...]:
    """One list for the host from one list for each device."""
    flat = [task for line in lines for task in line]
    faults = once_faults(units, names, microbatches, flat)
    faults = faults or [
        f"the list of {names[device]} has the {described(units, names, task)}"
        for device, line in enumerate(lines)
        for task in line
        if units.device(task) != device
    ]
    if faults:
        raise PlanError("the orders of the devices are malformed:", tuple(faults))
    rows = [list(map(units.number, line)) for line in lines]
    place = {task: (device, at) for device, row in enumerate(rows) for at, task in enumerate(row)}
    after = _followers(units, microbatches)
    for row in rows if keeps_lines else ():
        for earlier, task in pairwise(row):
            after[earlier].append(task)
    missing = [0] * len(after)
    for later in after:
        for task in later:
            missing[task] += 1
    wanted_s = None
    if start_s is not None:
        numbers = [number for row in rows for number in row]
        pairs = zip(numbers, flat, strict=True)
        wanted_s = _wanted_s(after, missing, {number: start_s[task] for number, task in pairs})

    def ranked(task: int) -> tuple[float, tuple[int, int], int]:
        return (place[task][1] if wanted_s is None else wanted_s[task], place[task], task)

    ready = [ranked(task) for task, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready)[-1])
        for task in after[order[-1]]:
            missing[task] -= 1
            if not missing[task]:
                heappush(ready, ranked(task))
    if len(order) < len(flat):
        raise _circle(units, names, place, after)
    return tuple(map(units.task, order))


def _followers(units: Units, microbatches: int) -> list[list[int]]:
    """By task, those that come after it, whatever the lists of devices say."""
    width = len(units.unit_devices)
    of_one: list[list[int]] = [[] for _ in range(width)]
    for unit in range(width):
        for earlier, _ in comes_after(units, units.task(unit)):
            of_one[units.number(earlier)].append(unit)
    bases = range(0, microbatches * width, width)
    found = [[base + later for later in some] for base in bases for some in of_one]
    for task in range(len(found) - width):  # the same of the next microbatch
        found[task].append(task + width)
    return found


def _wanted_s(
    after: Sequence[Sequence[int]], missing: Sequence[int], start_s: Mapping[int, float]
) -> dict[int, float]:
    """When each task must be issued at the latest: at its start, or at that of what comes after it.

    The code reaches one branch before another, so a task of the second is often issued after one of the first
    that starts later.
    """
    left, found = list(missing), dict(start_s)
    sorted_tasks = [task for task, count in enumerate(left) if not count]
    for task in sorted_tasks:  # grows while it is walked
        for later in after[task]:
            left[later] -= 1
            if not left[later]:
                sorted_tasks.append(later)
    for task in reversed(sorted_tasks):
        found[task] = min([found[task], *[found[later] for later in after[task]]])
    return found


def _circle(
    units: Units,
    names: Sequence[str],
    place: Mapping[int, tuple[int, int]],
    after: Sequence[Sequence[int]],
) -> PlanError:
    faults = []
    graph = nx.DiGraph([(task, later) for task, followers in enumerate(after) for later in followers])
    for arc in nx.find_cycle(graph):
        before, behind = map(units.task, arc)
        reasons = [why for found, why in comes_after(units, behind) if found == before]
        ends = [
            f"{described(units, names, end)} (position {place[units.number(end)][1]})"
            for end in (behind, before)
        ]
        why = reasons[0] if reasons else "that device's list says so"
        faults.append(f"{ends[0]} comes after {ends[1]}: {why}")
    return PlanError("the orders of the devices contradict each other:", tuple(faults))
