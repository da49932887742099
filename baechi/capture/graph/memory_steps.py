r"""How much memory the backward of a layer adds to what was allocated before, step by step.

    adds      ___/''''\__/''\_____/''      what it makes, less what autograd kept for it alone
    releases       out    lent   sum       what was allocated before, and may be freed meanwhile

A step is a stretch between two such releases. Whether the memory is really freed depends on which
device holds it and where it came from, so on the placement:

    out     the gradient of its output, unless another device sent it
    lent    what autograd keeps for it of its inputs, unless that was sent, or is a copy
    sum     the gradient of an input that other layers made before: added to its own, if on this device
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from baechi.capture.watch.trace import BackwardOp, Storage, Trace

Part = Sequence[tuple[int, BackwardOp]]
"""Operations of the backward that belong to one layer, with their numbers."""


class Sum(NamedTuple):
    """A sum of two gradients of one input.

    Args:
        event: when it is made.
        there: the gradient that others made.
        own: that of this layer.
        total: the sum.
    """

    event: int
    there: Storage
    own: Storage
    total: Storage


def sums(part: Part, weights: set[int]) -> list[Sum]:
    """The sums of a layer's own gradient and one from other layers that only the sum reads.

    Args:
        part: operations.
        weights: gradients of weights, which are no inputs.
    """
    made = {storage.index for _, op in part for storage in op.makes}
    read = {storage.index for _, op in part if not op.adds for storage in op.reads}
    found = []
    for number, op in part:
        there = [s for s in op.reads if s.index not in made and s.index not in read]
        own = [s for s in op.reads if s.index in made]
        if not own:  # the layer passes a gradient on unchanged (a residual): its own is the newer one
            there.sort(key=lambda storage: storage.index)
            there, own = there[:1], there[1:]
        if op.adds and len(there) == len(own) == len(op.makes) == 1 and op.makes[0].index not in weights:
            found.append(Sum(number, there[0], own[0], op.makes[0]))
    return found


def gradients_of_weights(trace: Trace) -> set[int]:
    """Storages of gradients of weights, and of what is added up to them.

    Args:
        trace: the run.
    """
    # from the final gradients back through the additions that led to them
    found = set(trace.gradients)
    for op in reversed(trace.backward or ()):
        if op.adds and any(storage.index in found for storage in op.makes):
            found |= {storage.index for storage in op.reads}
    return found


def steps(
    part: Part, kept: Iterable[Storage], going: Iterable[tuple[str, Storage]], added: Sequence[Sum]
) -> list[list[Any]]:
    """The most memory that a part adds, in each stretch between two releases.

    Args:
        part: its operations.
        kept: what autograd kept for it alone.
        going: what else it releases: `"out"` or `"lent"`, and the memory.
        added: its sums.

    Returns:
        Steps, each with four entries: the fraction of its kernels launched before, the bytes added, and
        the kind (or `""`) and bytes of what is released when the step begins. At `"add"`, just before
        `"sum"`, the sum is allocated beside both of its terms.
    """
    if not part:
        return []
    first, last = part[0][0], part[-1][0]
    # second entry: the order within one event; memory is freed first, then made, then a sum's term goes
    moments = [(s.died, 0, kind, s.size_bytes) for kind, s in going if s.died is not None]
    for one in added:
        moments += [(one.event, 1, "add", one.total.size_bytes), (one.event, 2, "sum", one.there.size_bytes)]
    changes = [
        (event, 0, "", -s.size_bytes)
        for s in kept
        if (event := s.died) is not None and first <= event <= last
    ]
    for storage, event in _lives(part, added):
        changes.append((event, 1, "", storage.size_bytes))
        if storage.died is not None and storage.died <= last:
            changes.append((storage.died, 0, "", -storage.size_bytes))
    kernels = [number for number, op in part if op.kernel]
    found: list[list[Any]] = [[0.0, 0, "", 0]]
    level = 0
    for event, _, kind, size_bytes in sorted([*changes, *[m for m in moments if first <= m[0] <= last]]):
        launched = round(bisect_left(kernels, event) / max(1, len(kernels)), 3)
        if kind:
            found.append([launched, level, kind, size_bytes])
            continue
        level += size_bytes
        if level > found[-1][1]:  # a new maximum within this step
            found[-1][:2] = launched, level
    return found


def given_back(part: Part, made: Container[int]) -> list[Storage]:
    """Gradients that other layers made, that a part read, and that are released while it runs.

    Args:
        part: operations.
        made: the storages that backward made.
    """
    if not part:
        return []
    own = {storage.index for _, op in part for storage in op.makes}
    read = {s.index: s for _, op in part for s in op.reads if s.index not in own}
    first, last = part[0][0], part[-1][0]
    return [s for i, s in read.items() if i in made and s.died is not None and first <= s.died <= last]


def _lives(part: Part, added: Sequence[Sum]) -> Iterable[tuple[Storage, int]]:
    """What a part makes, and when, as if it made no sums.

    Whether a sum is made depends on the placement. Without it, the own gradient lives until the sum would
    have died; with it, the steps `"add"` and `"sum"` account for the difference.
    """
    died: dict[int, int | None] = {}
    for one in reversed(added):  # last first: the own term of a later sum may be an earlier sum
        died[one.own.index] = died.pop(one.total.index, one.total.died)
    totals = {one.total.index for one in added}
    for number, op in part:
        for storage in op.makes:
            if storage.index not in totals:
                kept = storage.index in died
                yield (replace(storage, died=died[storage.index]) if kept else storage), number
