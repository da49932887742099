"""Which layer each part of the backward belongs to: what it computes, and holds at most.

Autograd numbers its nodes as the forward makes them, so a node belongs to the layer, or the glue, of
the first operation that came after it:

    forward    Linear makes node 7, then runs `addmm` ......... addmm belongs to layer "a"
    backward   node 7 runs `mm`, `mm`, `sum` .................. so these are "a"'s, too
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate

from baechi.capture.graph.draft import Draft
from baechi.capture.watch.trace import BackwardOp, Op, Storage, Trace, peak_bytes
from baechi.records.device import HostWork


def share_out(trace: Trace, drafts: Collection[Draft], owners: Mapping[int, Draft]) -> None:
    """Give each draft its part of the backward."""
    name_of = _names(trace, owners)
    parts: dict[str, list[tuple[int, BackwardOp]]] = {}
    sums: set[int] = set()
    before = ""
    for number, op in enumerate(trace.backward or (), start=len(trace.events)):
        before = name_of(op.sequence) or before
        if before:
            parts.setdefault(before, []).append((number, op))
            takers = set(map(name_of, op.takers))
            if takers and not takers & {before, ""}:  # none of them is its own, or a weight's
                sums.add(number)
    regions = _regions(trace, owners)
    for draft in drafts:
        part = parts.get(draft.name, [])
        draft.runs_again = _runs_again(draft, part, regions)
        draft.backward_kernels = sum([op.kernel for _, op in part])
        draft.backward_host_work = _host_work(part)
        draft.backward_flops = sum([op.flops for _, op in part])
        draft.backward_moved_bytes = sum([op.moved_bytes for _, op in part])
        draft.backward_arithmetic = [(op.flops, op.moved_bytes) for _, op in part if op.flops]
        draft.backward_temp_bytes = _temp_bytes(part, trace.gradients)
        draft.lasting = _lasting(draft, trace)
        kept = [s for index, (s, _) in draft.made.items() if s.saved and index not in draft.lent]
        draft.backward_rise_bytes = _rise_bytes(_without_sums(part, sums), kept)


def _host_work(part: Sequence[tuple[int, BackwardOp]]) -> Counter[HostWork]:
    """What torch does on the host in a part of the backward."""
    found = Counter[HostWork]()
    for _, op in part:
        found.update(op.host_work)
    return found


def _names(trace: Trace, owners: Mapping[int, Draft]) -> Callable[[int], str]:
    """A function that says whose an autograd node is; `""` if it is no layer's, as that of a weight."""
    sequences: list[int] = []
    working: list[Draft] = []
    for number, event in enumerate(trace.events):
        if isinstance(event, Op) and number in owners:
            sequences.append(event.sequence)
            working.append(owners[number])

    def name_of(sequence: int) -> str:
        place = bisect_right(sequences, sequence) if sequence >= 0 else len(working)
        return working[place].name if place < len(working) else ""

    return name_of


def _regions(trace: Trace, owners: Mapping[int, Draft]) -> list[dict[str, int]]:
    """By region that backward may run again, its nodes, each with the kernels that it launches there."""
    found: dict[int, dict[str, int]] = {}
    for number, event in enumerate(trace.events):
        if isinstance(event, Op) and event.region and number in owners:
            kernels = found.setdefault(event.region, {})
            kernels[owners[number].name] = kernels.get(owners[number].name, 0) + event.kernel
    return list(found.values())


def _runs_again(
    draft: Draft, part: Sequence[tuple[int, BackwardOp]], regions: Sequence[dict[str, int]]
) -> dict[str, float]:
    """What runs again in a draft's part: torch stops when all is there that the region keeps."""
    left = sum([op.kernel for _, op in part if op.again])
    found: dict[str, float] = {}
    for name, kernels in next((it for it in regions if draft.name in it), {}).items():
        again = min(left, kernels)
        left -= again
        if again or name == draft.name:  # which reads what it was given, since it keeps that
            found[name] = again / max(1, kernels)
    return found if any(found.values()) else {}


def _without_sums(
    part: Sequence[tuple[int, BackwardOp]], sums: Collection[int]
) -> Sequence[tuple[int, BackwardOp]]:
    """A part without the sums at its end of what several layers read: a plan decides where they are made."""
    end = len(part)
    while end and part[end - 1][0] in sums:
        end -= 1
    return part[:end]


def _rise_bytes(part: Sequence[tuple[int, BackwardOp]], kept: Sequence[Storage]) -> int:
    """The most that a part adds: what it made and holds, less what it freed of `kept`."""
    if not part:
        return 0
    first, last = part[0][0], part[-1][0]
    changes = [(s.died, 0, -s.size_bytes) for s in kept if s.died is not None and first <= s.died <= last]
    for number, op in part:
        for storage in op.makes:
            changes.append((number, 1, storage.size_bytes))
            if storage.died is not None and storage.died <= last:
                changes.append((storage.died, 0, -storage.size_bytes))
    return max(0, *accumulate([size_bytes for _, _, size_bytes in sorted(changes)]))


def _temp_bytes(part: Sequence[tuple[int, BackwardOp]], gradients: set[int]) -> int:
    """The most bytes that were alive at once of what a part made, the gradients of weights left out."""
    made = [(s, number) for number, op in part for s in op.makes if s.index not in gradients]
    return peak_bytes(made, part[-1][0]) if part else 0


def _lasting(draft: Draft, trace: Trace) -> set[int]:
    """What the model's code keeps beyond backward, in a cache say; what it returns goes to the host."""
    end = len(trace.events) + len(trace.backward or ())
    kept = {index: s for index, (s, _) in draft.made.items() if s.saved or index in draft.held}
    outliving = {index for index, s in kept.items() if s.died is None or s.died >= end}
    return outliving - draft.lent - draft.delivered
