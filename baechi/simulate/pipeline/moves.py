"""The host's list made better in small steps: a task is issued earlier or later.

Rules and drafts know when tasks start, not when the host can issue them: it obeys one list, in the order of
the code, and is never far ahead of a device. So tasks move in the list itself, and each list is replayed. One
that is slightly slower may be kept at first, less so towards the end (simulated annealing: Kirkpatrick et al.
1983).
"""

from collections.abc import Sequence
from math import exp, isclose
from random import Random

from baechi.records.pipeline import Task
from baechi.records.pipeline.dependencies import comes_after, in_flight
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.replay import Replay

_SLACK = 2e-3
"""At first, a list that is slower by this part of the step is kept in one of three cases."""

_FAR = (1, 2, 4, 8, 16)
"""So many places a task moves at most."""

_PATIENCE = 150
"""If so many lists in turn take just as long, the host is not what the step waits for."""


def moved(
    costs: PipelineCosts,
    microbatches: int,
    order: Sequence[Task],
    most: Sequence[int],
    *,
    tries: int,
    enough_s: float,
) -> tuple[Task, ...]:
    """The best list that was found from a list.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        order: a list that can run.
        most: by device, how many microbatches may be in flight.
        tries: how many lists are replayed.
        enough_s: a step that is good enough.
    """
    chance, current = Random(0), list(order)
    earlier = {task: [before for before, _ in comes_after(costs.units, task)] for task in current}
    later: dict[Task, list[Task]] = {task: [] for task in current}
    for task, found in earlier.items():
        for before in found:
            later[before].append(task)
    asks = min(most) < microbatches
    best, best_s = tuple(current), Replay(costs, microbatches, current).makespan_s
    current_s, same = best_s, 0
    for number in range(tries):
        if best_s <= enough_s or same >= _PATIENCE:
            break
        changed = _changed(current, earlier, later, chance)
        if changed is None or (asks and not _keeps(costs, changed, most)):
            continue
        step_s = Replay(costs, microbatches, changed).makespan_s
        same = same + 1 if isclose(step_s, current_s) else 0
        slack_s = _SLACK * current_s * (1 - number / tries)
        if step_s <= current_s or chance.random() < exp((current_s - step_s) / slack_s):
            current, current_s = changed, step_s
        if step_s < best_s:
            best, best_s = tuple(changed), step_s
    return best


def _changed(
    order: Sequence[Task], earlier: dict[Task, list[Task]], later: dict[Task, list[Task]], chance: Random
) -> list[Task] | None:
    """The list with one task at another place, if there is one between what it follows and what follows."""
    source = chance.randrange(len(order))
    task, far = order[source], chance.choice(_FAR)
    first = last = source
    while first > max(0, source - far) and order[first - 1] not in earlier[task]:
        first -= 1
    while last < min(len(order) - 1, source + far) and order[last + 1] not in later[task]:
        last += 1
    target = chance.randint(first, last)
    if target == source:
        return None
    changed = [*order[:source], *order[source + 1 :]]
    changed.insert(target, task)
    return changed


def _keeps(costs: PipelineCosts, order: Sequence[Task], most: Sequence[int]) -> bool:
    live = in_flight(costs.units, len(most), order)
    return all([count <= limit for count, limit in zip(live, most, strict=True)])
