"""Which layer each part of the backward belongs to: what it computes, and holds at most.

Autograd numbers its nodes as the forward makes them, so a node belongs to the layer, or the glue, of
the first operation that came after it:

    forward    Linear makes node 7, then runs `addmm` ......... addmm belongs to layer "a"
    backward   node 7 runs `mm`, `mm`, `sum` .................. so these are "a"'s, too
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence

from baechi.capture.graph import memory_steps
from baechi.capture.graph.draft import Draft
from baechi.capture.graph.late_kernels import late_kernels
from baechi.capture.watch.trace import BackwardOp, Op, Storage, Trace, peak_bytes


def share_out(trace: Trace, drafts: Collection[Draft], owners: Mapping[int, Draft]) -> None:
    """Give each draft its part of the backward.

    Args:
        trace: the run.
        drafts: all of them; those without operations have no part.
        owners: by number of an event, the draft that the operation belongs to.
    """
    sequences: list[int] = []
    working: list[Draft] = []
    for number, event in enumerate(trace.events):
        if isinstance(event, Op) and number in owners:
            sequences.append(event.sequence)
            working.append(owners[number])
    parts: dict[str, list[tuple[int, BackwardOp]]] = {}
    before = ""
    for number, op in enumerate(trace.backward or ()):
        place = bisect_right(sequences, op.sequence) if op.sequence >= 0 else len(working)
        before = working[place].name if place < len(working) else before
        if before:
            parts.setdefault(before, []).append((len(trace.events) + number, op))
    weights, lent = memory_steps.gradients_of_weights(trace), _lent(drafts, owners)
    made = trace.made_in_backward
    for draft in drafts:
        part = parts.get(draft.name, [])
        draft.backward_kernels = sum([op.kernel for _, op in part])
        draft.backward_flops = sum([op.flops for _, op in part])
        draft.backward_moved_bytes = sum([op.moved_bytes for _, op in part])
        draft.backward_temp_bytes = _temp_bytes(part, trace.gradients)
        draft.backward_tail = late_kernels([op.moved_bytes for _, op in part if op.kernel])
        draft.lasting = _lasting(draft, trace)
        added = memory_steps.sums(part, weights)
        others = {one.there.index for one in added}
        draft.upstream_span_bytes = _span_bytes(part, made - others)
        kept = [s for index, (s, _) in draft.made.items() if s.saved and index not in draft.lent]
        out = [s for s in memory_steps.given_back(part, made) if s.index not in others]
        going = [*[("out", s) for s in out], *[("lent", s) for s in lent.get(draft.name, ())]]
        draft.backward_steps = memory_steps.steps(part, kept, going, added)


def _lent(drafts: Iterable[Draft], owners: Mapping[int, Draft]) -> dict[str, list[Storage]]:
    """By node, memory that other nodes made and that autograd keeps for its backward only."""
    found: dict[str, list[Storage]] = {}
    for draft in drafts:
        for storage in [draft.made[index][0] for index in sorted(draft.lent)]:
            savers = {owners[event].name for event in storage.savers if event in owners}
            if len(savers) == 1:
                found.setdefault(savers.pop(), []).append(storage)
    return found


def _span_bytes(part: Sequence[tuple[int, BackwardOp]], gradients: set[int]) -> int:
    """What a copy takes of the gradient that a part begins with, if that has gaps."""
    own = {storage.index for _, op in part for storage in op.makes}
    spans = [(index, size) for _, op in part for index, size in op.spans.items()]
    return max([size for index, size in spans if index in gradients and index not in own], default=0)


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
