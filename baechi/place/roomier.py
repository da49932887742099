"""More room for a plan: parts of full devices go to emptier ones, where the step hardly notices.

    before                      after
    gpu0  1 2 3 4 5 6 7 8       gpu0  1 2 3 4
    gpu1  (empty)               gpu1          5 6 7 8       one more transfer, half as full

Placers that fill devices leave some of them empty. Where a device is nearly full, the layers that it runs
last (or first) move to the device with the most memory left, as many as make both equally full.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from baechi.place.evaluation import Attempt, Check, Evaluated
from baechi.place.preference import ENOUGH, EQUAL, NOTCH, headroom, left_by_device
from baechi.place.problem import ANYWHERE, Problem


def roomier(problem: Problem, check: Check, one: Attempt, best_s: float) -> list[Attempt]:
    """Relieve the fullest device again and again, as long as the step stays nearly the same."""
    found = one.found
    for _ in problem.devices:
        nearly = [
            moved
            for moved in _relieved(problem, check, found)
            if moved.step_s <= best_s * EQUAL and _left(problem, moved) > _left(problem, found)
        ]
        if not nearly:
            break
        found = min(nearly, key=lambda moved: moved.step_s)
    if headroom(problem, found) <= headroom(problem, one.found):
        return []
    return [Attempt(f"{one.name} + more room", found)]


def _relieved(problem: Problem, check: Check, found: Evaluated) -> Iterator[Evaluated]:
    """The placement with the first, or the last, layers of the fullest device on the emptiest one."""
    size, left = problem.memory_bytes, left_by_device(problem, found)
    if min(left.values(), default=1.0) >= ENOUGH:
        return
    full, empty = min(left, key=left.__getitem__), max(left, key=left.__getitem__)
    # after the first amount both have the same part left; after the second the full one has enough
    even_bytes = (left[empty] - left[full]) * size[full] * size[empty] / (size[full] + size[empty])
    enough_bytes = (ENOUGH + NOTCH - left[full]) * size[full]
    groups = _by_turn(problem, found, full)
    amounts_bytes = dict.fromkeys((even_bytes, min(even_bytes, enough_bytes)))  # often they are one
    for sequence, least_bytes in product((groups[::-1], groups), amounts_bytes):
        moved = set(_worth(problem, sequence, least_bytes))
        if moved:
            device_of = [empty if group in moved else on for group, on in enumerate(found.device_of)]
            yield check(device_of, found.order)


def _worth(problem: Problem, groups: Sequence[int], least_bytes: float) -> Iterator[int]:
    """The first of these groups that together take so many bytes."""
    taken = 0
    for group in groups:
        if taken >= least_bytes:
            return
        taken += problem.group_bytes[group].permanent_bytes
        yield group


def _by_turn(problem: Problem, found: Evaluated, device: int) -> list[int]:
    """A device's groups that may move, in the order in which their first layers run."""
    groups = dict.fromkeys([problem.indexed.group_of[layer] for layer in found.order])
    return [group for group in groups if found.device_of[group] == device and problem.pins[group] == ANYWHERE]


def _left(problem: Problem, found: Evaluated) -> list[float]:
    """The parts of their memory that devices have left, the fullest device first."""
    return sorted(left_by_device(problem, found).values())
