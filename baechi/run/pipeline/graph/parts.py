"""What autograd records of one microbatch, in parts: one for each stage, which goes backward by itself.

    part of stage 0    a ── b ── exit ◀┐
                                       ┆ a cut: no edge of autograd; the gradient is handed over
    part of stage 1          begin ────┘── c ── d

A part that reads what another part made gets an alias of it, which begins a graph of its own. So the
backward of a part is one call of autograd's engine: from the exits that got gradients to the cuts.
Autograd numbers a thread's nodes in ascending order, so a node's number says which part made it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.errors import UNSPLIT_CURE, note
from baechi.run.pipeline.graph.part import Cut, Part, Stretch
from baechi.run.step.aliases import base_of, is_custom
from baechi.torchlib.private.autograd import next_sequence_number, sequence_number
from baechi.torchlib.private.tensors import is_view
from baechi.torchlib.tensors.weak_table import WeakTable

_CURE = (
    "parts of the batch, and what goes from one device to another, are views: where the model's code "
    f"returns such a tensor as it is and writes it, clone it first, or {UNSPLIT_CURE}"
)


class Parts:
    """The parts of one microbatch.

    Args:
        backend: the devices.

    Attributes:
        all: the parts.
        now: the one that the microbatch's thread records.
        of_stage: by stage, its part, if there is one.
        way: which parts the code recorded in turn, and how many nodes came before each.
        handle: what all cuts lead to in autograd's graph; it gets no gradient.
    """

    def __init__(self, backend: AbstractBackend) -> None:
        self.all: list[Part] = []
        self.now: Part | None = None
        self.of_stage: dict[int, Part] = {}
        self.way: list[int] = []
        self.handle = torch.zeros((), requires_grad=True)
        self._backend = backend
        self._starts: list[int] = []
        self._stretches: list[Stretch] = []
        self._stretch = Stretch(None)
        self._without_node: WeakTable[Stretch] = WeakTable()
        self._since = 0
        self._renamed: dict[int, Part | None] = {}

    def enter(self, part: Part | None) -> None:
        """What is recorded from now on belongs to a part."""
        before = self.now
        if part is before:
            return
        if before is not None:
            self._stretch.end = event_at(self._backend, before.place)
        self.now, number = part, -1 if part is None else part.number
        self._stretch, self._since = Stretch(part), next_sequence_number()
        if self._starts and self._starts[-1] == self._since:
            self._stretches[-1], self.way[-2] = self._stretch, number
        else:
            self._starts.append(self._since)
            self._stretches.append(self._stretch)
            self.way += (number, self._since - self._starts[0])

    @contextmanager
    def entered(self, part: Part | None) -> Iterator[None]:
        """Within this context, what is recorded belongs to a part."""
        before = self.now
        self.enter(part)
        try:
            yield
        finally:
            self.enter(before)

    def part_for(self, stage: int, place: str, given: Iterable[torch.Tensor]) -> Part:
        """The part of a stage that reads some tensors; another one if parts would need each other.

        Code that takes another path than capture saw may feed a stage from one that needs it.
        """
        makers, known = list(map(self.part_of, given)), self.of_stage.get(stage)
        if known is not None:
            for maker in makers:
                if maker is not None and known.number in maker.above:
                    break
            else:
                return known
        part = Part(len(self.all), place)
        self.all.append(part)
        self.of_stage.setdefault(stage, part)
        return part

    def part_at(self, place: str, given: Iterable[torch.Tensor]) -> Part:
        """The part for a function that capture did not see as a node, such as a view.

        It is the last of those that made its arguments, if that lies where the function runs.
        """
        found = {part.number: part for part in map(self.part_of, given) if part is not None}
        makers = [found[number] for number in sorted(found, reverse=True)]
        for part in makers or ([self.now] if self.now is not None else []):
            if part.place == place and not any(part.number in maker.above for maker in makers):
                return part
        self.all.append(Part(len(self.all), place))
        return self.all[-1]

    def part_of(self, tensor: torch.Tensor) -> Part | None:
        """The part that made a tensor; None if it has no history, or one outside of the microbatch."""
        if not tensor.requires_grad:
            return None
        before = next_sequence_number()
        try:
            node: Any = tensor.grad_fn
        except RuntimeError as error:  # memory was written that the tensor shows
            note(error, _CURE)
            raise
        if node is None:
            return None
        number = sequence_number(node)
        if number >= before and is_view(tensor):
            # the base was written, and this question made the view's node anew: it belongs to its base's part
            part = self._renamed[number] = self.made_at(sequence_number(node.next_functions[0][0]))
            return part
        if number in self._renamed:
            return self._renamed[number]
        return self.now if number >= self._since else self.made_at(number)

    def made_at(self, number: int) -> Part | None:
        """The part that made the node with a number; None for none of them."""
        if number in self._renamed:
            return self._renamed[number]
        position = bisect_right(self._starts, number) - 1
        return self._stretches[position].part if position >= 0 else None

    def note(self, tensor: torch.Tensor, place: str) -> None:
        """Note that a tensor is made now: of one that autograd did not record, no node tells when it was."""
        made, part = base_of(tensor), self.now
        if part is None or part.place != place or made.requires_grad:
            return
        if self._without_node.get(made) is None:  # else this is one more view
            self._without_node.put(made, self._stretch)

    def end_of(self, tensor: torch.Tensor, place: str) -> Any:
        """The event after the stretch of code that made a tensor; None if it is not over, or not known.

        A view was made with what it is a view of. The node of an `autograd.Function` is older than what its
        forward computes, which may take stretches.
        """
        made = base_of(tensor)
        node: Any = made.grad_fn
        if node is None:
            stretch = self._without_node.get(made)
        elif is_custom(node) or is_custom(tensor.grad_fn):
            return None
        else:
            position = bisect_right(self._starts, sequence_number(node)) - 1
            stretch = self._stretches[position] if position >= 0 else None
        if stretch is None or stretch.part is None or stretch.part.place != place:
            return None
        return stretch.end

    def cut(self, tensor: torch.Tensor, maker: Part, source: str, place: str) -> Cut:
        """Note that the part of now reads a tensor of another part."""
        part = self.now
        assert part is not None
        cut = Cut(maker.exit_of(tensor, source), place)
        part.cuts.append(cut)
        if part.number not in maker.readers:
            maker.readers.add(part.number)
            more = {maker.number} | maker.above
            for other in self.all:
                if other is part or part.number in other.above:
                    other.above |= more
        return cut


def event_at(backend: AbstractBackend, place: str) -> Any:
    """An event after all that was issued at a place so far; None where nothing is queued."""
    return backend.record(backend.compute_stream(place)) if place in backend.names else None
