"""The optimal plan of a small graph: tries every placement and order that a bound does not rule out.

    placements   group by group; one whose bound is no better than the best plan so far is skipped
    orders       layer by layer, every topological order. Two that differ only in neighbours on different
                 devices count as one, unless the graph has host times

The bound of a placement is the larger of the work of its busiest device and its longest path with
transfers. It is used in tests, and to measure how far a placer is from the optimum.
"""

from collections.abc import Iterator, Sequence

from baechi.errors import PlacementError
from baechi.place.bottom_level import bottom_levels
from baechi.place.evaluation import Evaluated, Rehearsal, evaluate
from baechi.place.problem import ANYWHERE, Problem
from baechi.place.tight.least_bytes import least_bytes, least_peaks

MOST_SIMULATIONS = 200_000


def exact(
    problem: Problem, rehearse: Rehearsal, *, enough_s: float = 0.0, most: int = MOST_SIMULATIONS
) -> Evaluated:
    """The placement and order with the shortest predicted step."""
    best: Evaluated | None = None
    tried, least = 0, least_bytes(problem)
    for bound_s, device_of in sorted(_placements(problem)):
        if best is not None and (bound_s >= best.step_s * (1 - 1e-12) or best.step_s <= enough_s):
            break
        needed = least_peaks(problem, least, device_of)
        if any(peak > memory for peak, memory in zip(needed, problem.memory_bytes, strict=True)):
            continue
        for order in _orders(problem, device_of):
            tried += 1
            if tried > most:
                raise ValueError(
                    f"the best plan of {len(problem.indexed)} layers takes over {most} simulations"
                )
            found = evaluate(problem, rehearse, device_of, order)
            if found is not None and (best is None or found.step_s < best.step_s):
                best = found
            if best is not None and best.step_s <= max(enough_s, bound_s * (1 + 1e-12)):
                break  # no order of this placement is better
    if best is None:
        raise PlacementError("no placement of these layers keeps every device's memory, in any order")
    return best


def _placements(problem: Problem) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every placement, with a lower bound on its step. Of equal devices the first one is used first."""
    alike = _alike(problem)
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        device_of = waiting.pop()
        group = len(device_of)
        if group == len(problem.indexed.members):
            yield _bound_s(problem, device_of), device_of
            continue
        for device in problem.devices:
            fresh = device not in device_of
            if problem.pins[group] not in (ANYWHERE, device):
                continue
            if fresh and any(other < device and other not in device_of for other in alike[device]):
                continue
            waiting.append((*device_of, device))


def _alike(problem: Problem) -> list[list[int]]:
    """By device, the devices that are interchangeable with it."""
    if (
        problem.cluster.links
        or len(problem.cluster.hosts) > 1
        or any(pin != ANYWHERE for pin in problem.pins)
    ):
        return [[] for _ in problem.devices]
    kinds = [(d.kind, d.speed, d.memory_bytes) for d in problem.cluster.devices]
    return [
        [other for other in problem.devices if kinds[other] == kinds[device]] for device in problem.devices
    ]


def _bound_s(problem: Problem, device_of: Sequence[int]) -> float:
    indexed = problem.indexed
    work_s = [0.0 for _ in problem.devices]
    for layer in range(len(indexed)):
        device = device_of[indexed.group_of[layer]]
        work_s[device] += problem.work_s[device][layer]
    levels = bottom_levels(problem, device_of, ordered=not problem.training)
    return max([*work_s, *levels], default=0.0)


def _orders(problem: Problem, device_of: Sequence[int]) -> Iterator[list[int]]:
    """Every topological order, without those that run the same as another."""
    indexed = problem.indexed
    parents = [
        {indexed.source[tensor] for tensor in reads if indexed.source[tensor] >= 0} | set(before)
        for reads, before in zip(indexed.reads, indexed.before, strict=True)
    ]
    device = [device_of[group] for group in indexed.group_of]
    commute = not any(costs.host_forward_s for costs in indexed.costs)
    waiting: list[list[int]] = [[]]
    while waiting:
        order = waiting.pop()
        if len(order) == len(indexed):
            yield order
            continue
        done, last = set(order), order[-1] if order else ANYWHERE
        for layer in reversed(range(len(indexed))):
            if layer in done or not parents[layer] <= done:
                continue
            swapped = last > layer and device[last] != device[layer] and last not in parents[layer]
            if not (commute and swapped):
                waiting.append([*order, layer])
