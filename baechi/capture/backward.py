"""The backward of a watched run: what each layer's part of it computes, and holds at most.

Autograd numbers its nodes as the forward makes them, so a node belongs to the layer, or the glue, of
the first operation that came after it:

    forward    Linear makes node 7, then runs `addmm` ......... addmm belongs to layer "a"
    backward   node 7 runs `mm`, `mm`, `sum` .................. so these are "a"'s, too
"""

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from baechi.backend.layout import copy_bytes
from baechi.backend.nest import tensors_in
from baechi.backend.operators import bytes_of, facts_of, flat, flops_of, is_kernel, writes_of
from baechi.capture.draft import Draft
from baechi.capture.trace import BackwardOp, Op, Storage, Trace, peak_bytes
from baechi.capture.watch import Watch

logger = logging.getLogger(__name__)


def run_backward(watch: Watch, model: nn.Module, given: Any, result: Any) -> None:
    """Run backward, and write down what it does; no gradient is put anywhere.

    It begins where training would: at outputs of one element (a loss), else at all outputs.

    Args:
        watch: the watch of the forward, which goes on.
        model: the model.
        given: what it was given.
        result: what it returned.
    """
    leaves = [t for t in (*model.parameters(), *tensors_in(given)) if t.requires_grad and t.is_leaf]
    outputs = list({id(t): t for t in tensors_in(result) if t.grad_fn is not None}.values())
    losses = [output for output in outputs if output.numel() == 1] or outputs
    losses = [output for output in losses if output.is_floating_point() or output.is_complex()]
    if not losses or not leaves:
        return
    watch.trace.backward = []
    try:
        ones = [torch.ones_like(loss) for loss in losses]
        gradients = torch.autograd.grad(losses, leaves, ones, allow_unused=True)
    except Exception as error:  # the model's own backward met fake tensors: costs are guessed then
        logger.info("backward is estimated from forward: it does not run here (%s)", error)
        watch.trace.backward = None
        return
    weights = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
    made = [grad for grad, _ in zip(gradients, weights, strict=False) if grad is not None]
    watch.trace.gradients = {watch.storage_of(grad).index for grad in made}


def note_backward(watch: Watch, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation of the backward, and write it down.

    Args:
        watch: the watch.
        func: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Returns:
        What it returns.
    """
    facts = facts_of(func)
    result = func(*args, **kwargs)
    if func.namespace == "prim":  # a question
        return result
    given, made = flat([*args, *kwargs.values()]), flat([result])
    if facts.aliases and given:
        storage = watch.storage_of(given[0])
        for tensor in made:
            watch.alias(tensor, storage)
        return result
    known = {id(watch.storage_of(tensor)) for tensor in given}
    makes = tuple([s for s in map(watch.storage_of, made) if id(s) not in known])
    if not makes and next(writes_of(facts, args, kwargs), None) is None:
        return result
    node = torch._C._current_autograd_node()
    backward = watch.trace.backward
    assert backward is not None
    backward.append(
        BackwardOp(
            sequence=-1 if node is None else node._sequence_nr(),
            makes=makes,
            flops=flops_of(func, args, kwargs, result),
            moved_bytes=bytes_of(facts, given, made),
            kernel=is_kernel(func, args, kwargs),
            reads=tuple([watch.storage_of(tensor) for tensor in given]),
            spans=_spans(watch, given),
            adds=facts.name == "add",
        )
    )
    return result


def _spans(watch: Watch, given: Iterable[torch.Tensor]) -> dict[int, int]:
    sizes = [(watch.storage_of(tensor).index, copy_bytes(tensor), tensor) for tensor in given]
    return {index: size for index, size, tensor in sizes if size > tensor.numel() * tensor.element_size()}


def share_out(trace: Trace, drafts: Iterable[Draft], owners: Mapping[int, Draft]) -> None:
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
    deaths, of_weights = _deaths(trace), _of_weights(trace)
    made = {storage.index for op in trace.backward or () for storage in op.makes}
    for draft in drafts:
        part = parts.get(draft.name, [])
        draft.backward_kernels = sum([op.kernel for _, op in part])
        draft.backward_flops = sum([op.flops for _, op in part])
        draft.backward_moved_bytes = sum([op.moved_bytes for _, op in part])
        draft.backward_temp_bytes = _temp_bytes(part, trace.gradients)
        kept = [s for index, (s, _) in draft.made.items() if s.saved and index not in draft.lent]
        draft.lasting = _lasting(draft, trace)
        gone, sums = _given_back(part, deaths), _sums(part, of_weights)
        others = {storage.index for storage, _ in sums.values()}
        own = [storage for storage in gone if storage.index not in others]
        draft.upstream_span_bytes = _span_bytes(part, made - others)
        draft.backward_rise_bytes = _rise_bytes(part, kept, sums)
        draft.backward_sole_rise_bytes = _rise_bytes(part, [*kept, *own], sums)
        draft.backward_lean_rise_bytes = _rise_bytes(part, [*kept, *gone], {})


def _span_bytes(part: Sequence[tuple[int, BackwardOp]], gradients: set[int]) -> int:
    """What a copy takes of the gradient that a part begins with, if that has gaps."""
    own = {storage.index for _, op in part for storage in op.makes}
    spans = [(index, size) for _, op in part for index, size in op.spans.items()]
    return max([size for index, size in spans if index in gradients and index not in own], default=0)


def _temp_bytes(part: Sequence[tuple[int, BackwardOp]], gradients: set[int]) -> int:
    """The most bytes that were alive at once of what a part made, the gradients of weights left out."""
    made = [(s, number) for number, op in part for s in op.makes if s.index not in gradients]
    return peak_bytes(made, part[-1][0]) if part else 0


def _of_weights(trace: Trace) -> set[int]:
    """Gradients of weights, and what is added up to them."""
    found = set(trace.gradients)
    for op in reversed(trace.backward or ()):
        if op.adds and any(storage.index in found for storage in op.makes):
            found |= {storage.index for storage in op.reads}
    return found


def _sums(part: Sequence[tuple[int, BackwardOp]], weights: set[int]) -> dict[int, tuple[Storage, Storage]]:
    """Sums of a gradient that a part made and one that was there, of the same input, which nobody else reads.

    By index of the sum: the one that was there, and its own. Not those of weights, which are always there.
    """
    made = {storage.index for _, op in part for storage in op.makes}
    times = Counter([storage.index for _, op in part for storage in op.reads])
    found = {}
    for _, op in part:
        there = [s for s in op.reads if s.index not in made and times[s.index] == 1]
        own = [s for s in op.reads if s.index in made]
        if op.adds and len(there) == len(own) == len(op.makes) == 1:
            found[op.makes[0].index] = there[0], own[0]
    return {index: pair for index, pair in found.items() if index not in weights}


def _rise_bytes(
    part: Sequence[tuple[int, BackwardOp]],
    there: Sequence[Storage],
    unmade: Mapping[int, tuple[Storage, Storage]],
) -> int:
    """The most that a part adds to what is there, which is let go meanwhile.

    Sums that are not made, since the other gradient lies elsewhere: the part's own lives as long.
    """
    if not part:
        return 0
    died: dict[int, int | None] = {}
    for _, op in reversed(part):
        for total in [storage for storage in op.makes if storage.index in unmade]:
            died[unmade[total.index][1].index] = died.pop(total.index, total.died)
    made = [(s, number) for number, op in part for s in op.makes if s.index not in unmade]
    made = [(replace(s, died=died[s.index]) if s.index in died else s, number) for s, number in made]
    before = [(storage, part[0][0] - 1) for storage in there]
    peak = peak_bytes([*before, *made], part[-1][0])
    return max(0, peak - sum([s.size_bytes for s in there]))


def _lasting(draft: Draft, trace: Trace) -> set[int]:
    """What the model's code keeps beyond backward, in a cache say; what it returns goes to the host."""
    end = len(trace.events) + len(trace.backward or ())
    kept = {index: s for index, (s, _) in draft.made.items() if s.saved or index in draft.held}
    outliving = {index for index, s in kept.items() if s.died is None or s.died >= end}
    return outliving - draft.lent - draft.delivered


def _deaths(trace: Trace) -> list[tuple[int, int, Storage]]:
    """What backward made and let go: when it died, when it was made, and what."""
    made = [
        (storage.died, len(trace.events) + number, storage)
        for number, op in enumerate(trace.backward or ())
        for storage in op.makes
        if storage.died is not None
    ]
    return sorted(made, key=itemgetter(0, 1))


def _given_back(
    part: Sequence[tuple[int, BackwardOp]], deaths: Sequence[tuple[int, int, Storage]]
) -> list[Storage]:
    """What others made in backward, and what is let go while a part runs: gradients that it read."""
    if not part:
        return []
    first, last = part[0][0], part[-1][0]
    begin, end = (bisect_right(deaths, number, key=itemgetter(0)) for number in (first, last))
    return [storage for _, made, storage in deaths[begin:end] if made < first]
