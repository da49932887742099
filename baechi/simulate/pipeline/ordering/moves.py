"""The host's list made better in small steps: a task is issued earlier or later.

Rules and drafts know when tasks start, not when the host can issue them: it obeys one list, in the order of
the code, and is never far ahead of a device. So tasks move in the list itself, and each list is replayed.
In half of the cases it is one for which the end of the step waits, else any. A list that is
slightly slower may be kept at first, less so towards the end (simulated annealing: Kirkpatrick et al. 1983).
"""

from collections.abc import Sequence
from math import exp, isclose
from random import Random

from baechi.records.pipeline import Task
from baechi.records.pipeline.dependencies import comes_after, in_flight
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.ordering.critical import busy_before
from baechi.simulate.pipeline.replay import Replay

_SLACK = 2e-3
"""At first, a list that is slower by this part of the step is kept in one of three cases."""

_CRITICAL = 0.5
"""So often a task for which the end of the step waits moves before the one that kept its device busy."""

_FAR = (1, 2, 4, 8, 16)
"""So many places any other task moves at most."""

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
    chance, moves = Random(0), _Moves(costs, order)
    asks = min(most) < microbatches
    current, order, same = Replay(costs, microbatches, order), list(order), 0
    busy, best_s, best = busy_before(current), current.makespan_s, tuple(order)
    for number in range(tries):
        if best_s <= enough_s or same >= _PATIENCE:
            break
        if busy and chance.random() < _CRITICAL:
            task = chance.choice(list(busy))
            changed = moves.put_before(order, task, busy[task])
        else:
            changed = moves.any_moved(order, chance)
        if changed is None or (asks and not _keeps(costs, changed, most)):
            continue
        made = Replay(costs, microbatches, changed)
        step_s, current_s = made.makespan_s, current.makespan_s
        same = same + 1 if isclose(step_s, current_s) else 0
        slack_s = _SLACK * current_s * (1 - number / tries)
        if step_s <= current_s or chance.random() < exp((current_s - step_s) / slack_s):
            current, order, busy = made, changed, busy_before(made)
        if step_s < best_s:
            best, best_s = tuple(changed), step_s
    return best


class _Moves:
    """Changes of a list that leave each task after what it follows."""

    def __init__(self, costs: PipelineCosts, order: Sequence[Task]) -> None:
        self._earlier = {task: {before for before, _ in comes_after(costs.units, task)} for task in order}
        self._later: dict[Task, list[Task]] = {task: [] for task in order}
        for task, found in self._earlier.items():
            for before in found:
                self._later[before].append(task)

    def any_moved(self, order: Sequence[Task], chance: Random) -> list[Task] | None:
        """One task at another place, if there is one between what it follows and what follows."""
        source = chance.randrange(len(order))
        task, far = order[source], chance.choice(_FAR)
        first = last = source
        while first > max(0, source - far) and order[first - 1] not in self._earlier[task]:
            first -= 1
        while last < min(len(order) - 1, source + far) and order[last + 1] not in self._later[task]:
            last += 1
        target = chance.randint(first, last)
        if target == source:
            return None
        changed = [*order[:source], *order[source + 1 :]]
        changed.insert(target, task)
        return changed

    def put_before(self, order: Sequence[Task], task: Task, first: Task) -> list[Task] | None:
        """A task just before an earlier one, with all in between that it follows; None if it follows that."""
        begin, end = order.index(first), order.index(task)
        moving, staying = [task], list[Task]()
        wanted = set(self._earlier[task])
        for one in reversed(order[begin:end]):
            if one in wanted:
                moving.append(one)
                wanted |= self._earlier[one]
            else:
                staying.append(one)
        if first in wanted:
            return None
        return [*order[:begin], *reversed(moving), *reversed(staying), *order[end + 1 :]]


def _keeps(costs: PipelineCosts, order: Sequence[Task], most: Sequence[int]) -> bool:
    live = in_flight(costs.units, len(most), order)
    return all([count <= limit for count, limit in zip(live, most, strict=True)])
