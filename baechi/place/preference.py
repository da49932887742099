"""Which of several plans, whose steps are nearly equal: room to spare, few cuts, whole blocks.

A predicted step is a few percent off. So steps within a hundredth of the best count as equal, and then

1. headroom: the part of its memory that the fullest device has left, up to a fifth, in steps of a fiftieth;
2. cut edges: edges whose tensor travels, since each is a transfer that the prediction may be wrong about;
3. cut blocks: blocks (`layers.3`) that lie on several devices, harder to read and to change;
4. the shorter step, then the first.
"""

from collections.abc import Sequence

from baechi.place.evaluation import Attempt, Check, Evaluated
from baechi.place.problem import ANYWHERE, Problem

EQUAL = 1.01
"""Steps within this factor of the shortest count as equal."""

ENOUGH, NOTCH = 0.2, 0.02
"""More headroom than this is no better; less is told apart in these steps. Parts of a device's memory."""

_MOST_NOTCHES = round(ENOUGH / NOTCH)


def preferred(problem: Problem, tries: Sequence[Attempt]) -> Attempt:
    """Choose the plan to take."""
    limit_s = min([one.step_s for one in tries]) * EQUAL
    return min([one for one in tries if one.step_s <= limit_s], key=lambda one: _rank(problem, one.found))


def in_whole_blocks(problem: Problem, check: Check, tries: Sequence[Attempt]) -> list[Attempt]:
    """The best placements, with each block on the device that has most of its work."""
    limit_s = min([one.step_s for one in tries]) * EQUAL
    found: dict[tuple[int, ...], Attempt] = {}
    for one in sorted(tries, key=lambda one: one.step_s):
        device_of = _whole(problem, one.found.device_of)
        if one.step_s > limit_s or device_of == one.found.device_of or device_of in found:
            continue
        placed = check(device_of, one.found.order)
        if placed.fits(problem) and placed.step_s <= limit_s:
            found[device_of] = Attempt(f"{one.name} + whole blocks", placed)
    return list(found.values())


def _whole(problem: Problem, device_of: tuple[int, ...]) -> tuple[int, ...]:
    """A placement with each block on the device that has most of its work."""
    indexed, blocks = problem.indexed, _blocks(problem)
    work_s: dict[str, list[float]] = {}
    for layer, block in enumerate(blocks):
        if block is not None:
            on = device_of[indexed.group_of[layer]]
            work_s.setdefault(block, [-1.0 for _ in problem.devices])
            work_s[block][on] = max(work_s[block][on], 0.0) + problem.work_s[on][layer]
    found = list(device_of)
    for group, members in enumerate(indexed.members):
        block = blocks[members[0]]
        if block is not None and problem.pins[group] == ANYWHERE:
            found[group] = max(problem.devices, key=work_s[block].__getitem__)
    return tuple(found)


def _rank(problem: Problem, found: Evaluated) -> tuple[int, int, int, float]:
    return -headroom(problem, found), cut_edges(problem, found), _cut_blocks(problem, found), found.step_s


def headroom(problem: Problem, found: Evaluated) -> int:
    """The part of its memory that the fullest device has left, in notches of a fiftieth, at most a fifth."""
    least = min(left_by_device(problem, found).values(), default=0.0)
    return int(min(least, ENOUGH) / NOTCH + 1e-9)


def is_roomy(problem: Problem, found: Evaluated) -> bool:
    """Whether more headroom is no better."""
    return headroom(problem, found) == _MOST_NOTCHES


def left_by_device(problem: Problem, found: Evaluated) -> dict[int, float]:
    """By device that has memory, the part of it that is left."""
    sizes = zip(problem.devices, problem.memory_bytes, found.peak_bytes, strict=True)
    return {device: (size - peak) / size for device, size, peak in sizes if size}


def cut_edges(problem: Problem, found: Evaluated) -> int:
    """How many pairs of layers on two devices exchange a tensor."""
    indexed = problem.indexed
    on = [found.device_of[group] for group in indexed.group_of]
    pairs = {
        (maker, reader)
        for maker, readers in zip(indexed.source, indexed.consumers, strict=True)
        for reader in readers
        if maker >= 0 and on[maker] != on[reader]
    }
    return len(pairs)


def _cut_blocks(problem: Problem, found: Evaluated) -> int:
    """How many blocks lie on several devices."""
    devices: dict[str, set[int]] = {}
    for block, group in zip(_blocks(problem), problem.indexed.group_of, strict=True):
        if block is not None:
            devices.setdefault(block, set()).add(found.device_of[group])
    return sum([len(used) > 1 for used in devices.values()])


def _blocks(problem: Problem) -> list[str | None]:
    """By layer, the block that it is in: its module up to the first number (`encoder.layers.3`)."""
    named = zip(problem.indexed.names, problem.indexed.costs, strict=True)
    return [_block(costs.module or name) for name, costs in named]


def _block(module: str) -> str | None:
    parts = module.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else None
