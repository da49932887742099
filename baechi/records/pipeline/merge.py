"""Orders of devices, made into one list for the host."""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

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
    place = {
        task: (device, position) for device, line in enumerate(lines) for position, task in enumerate(line)
    }
    flat = [task for line in lines for task in line]
    faults = once_faults(units, names, microbatches, flat)
    faults = faults or [
        f"the list of {names[device]} has the {described(units, names, task)}"
        for task, (device, _) in place.items()
        if units.device(task) != device
    ]
    if faults:
        raise PlanError("the orders of the devices are malformed:", tuple(faults))
    after: dict[Task, list[Task]] = {task: [] for task in flat}
    missing = dict.fromkeys(flat, 0)
    pairs = [pair for line in lines for pair in pairwise(line)] if keeps_lines else []
    pairs += [(earlier, task) for task in flat for earlier, _ in comes_after(units, task)]
    for earlier, task in pairs:
        after[earlier].append(task)
        missing[task] += 1
    wanted_s = None if start_s is None else _wanted_s(after, missing, start_s)

    def ranked(task: Task) -> tuple[Any, ...]:
        device, position = place[task]
        return (position if wanted_s is None else wanted_s[task], device, position, task)

    ready: list[tuple[Any, ...]] = []
    for task in flat:
        if not missing[task]:
            heappush(ready, ranked(task))
    order: list[Task] = []
    while ready:
        order.append(heappop(ready)[-1])
        for task in after[order[-1]]:
            missing[task] -= 1
            if not missing[task]:
                heappush(ready, ranked(task))
    if len(order) < len(flat):
        raise _circle(units, names, place, after)
    return tuple(order)


def _wanted_s(
    after: Mapping[Task, Sequence[Task]], missing: Mapping[Task, int], start_s: Mapping[Task, float]
) -> dict[Task, float]:
    """When each task must be issued at the latest: at its start, or at that of what comes after it.

    The code reaches one branch before another, so a task of the second is often issued after one of the first
    that starts later.
    """
    left, found = dict(missing), dict(start_s)
    sorted_tasks = [task for task, count in left.items() if not count]
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
    place: Mapping[Task, tuple[int, int]],
    after: Mapping[Task, Sequence[Task]],
) -> PlanError:
    faults = []
    graph = nx.DiGraph([(task, later) for task, followers in after.items() for later in followers])
    for before, behind in nx.find_cycle(graph):
        reasons = [why for found, why in comes_after(units, behind) if found == before]
        ends = [f"{described(units, names, end)} (position {place[end][1]})" for end in (behind, before)]
        why = reasons[0] if reasons else "that device's list says so"
        faults.append(f"{ends[0]} comes after {ends[1]}: {why}")
    return PlanError("the orders of the devices contradict each other:", tuple(faults))
