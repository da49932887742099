"""The total order of a step over ranks: programs, and the transfers between them, as plain data.

It is what one process does (`programs.loop`), written down: a value that a program makes for others is sent
at once; what backward reads of forward, and weights that lie elsewhere, are sent when they are first read.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Self, cast

import torch
from torch import fx

from baechi.backend.ranks.devices import RankDevices
from baechi.errors import CompileError
from baechi.order.pipeline.by_rank import Action, Computation, Message, Transfer, in_messages, of_rank
from baechi.records.plan import Plan
from baechi.run.programs.loop import Values
from baechi.run.programs.program import Program, Slot
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.tensors.layout import strides_without_gaps

STATE: Slot = -1
"""In place of a slot: the state of a microbatch's random generator."""

JOINED_BYTES = 1 << 16
"""So large a message of several values may be: they are copied into it, which larger ones would notice."""


@dataclass(frozen=True, slots=True)
class Row:
    """How the value of a transfer travels.

    Args:
        strides: its strides, without gaps; those of rows, if its own have some.
        size: how many numbers it has.
        dtype: of these.
        is_in_order: whether its memory has them in the order of its rows.
    """

    strides: tuple[int, ...]
    size: int
    dtype: torch.dtype
    is_in_order: bool

    @classmethod
    def of(cls, one: Transfer) -> Self:
        """That of a transfer."""
        strides = strides_without_gaps(one.shape, one.stride)
        in_order = strides == strides_without_gaps(one.shape, [0] * len(strides))
        return cls(strides, prod(one.shape), getattr(torch, one.dtype), in_order)


@dataclass(frozen=True, slots=True)
class Scalars:
    """Outputs of one number that a rank makes, and all get in one message.

    Args:
        source: that rank.
        dtype: of the numbers.
        outputs: of each, the microbatch, its number among the outputs, and its shape.
    """

    source: int
    dtype: torch.dtype
    outputs: list[tuple[int, int, torch.Size]] = field(default_factory=list)


class Schedule:
    """What is done in a step, in one order for all ranks.

    Args:
        backend: the devices.
        values: by microbatch.
        weights: the `id`s of the model's weights and buffers; all else that a call reads is on every rank.

    Attributes:
        transfers: all of them.
        arrivals: by microbatch and slot of a copy, the transfer that brings it.
        gradients: by `id` of a leaf, the places where parts of its gradient are made, in the order in which
            they are added up.
        scalars: the outputs that all ranks get.
        there: by `id` of what programs are made of, the copies that need not be fetched, and their originals.
        state_at: by microbatch, the rank that drew last.
        draws: whether any program draws.
        phases: what this rank does, phase by phase: forward and backward, or both in one.
        rows: by number, how the value of a transfer of this rank lies in memory.
        digests: after each phase, a number that tells schedules apart.
        has_run: whether all phases ran, so that their programs are compiled.
        slowest_s: how long a phase took at most, since then.
    """

    def __init__(
        self, backend: RankDevices, plan: Plan, values: Sequence[Values], weights: Collection[int]
    ) -> None:
        self._backend, self._values, self._weights = backend, values, weights
        self._graph = plan.graph
        self.has_run, self.slowest_s = False, 0.0
        self.transfers: list[Transfer] = []
        self.arrivals: dict[tuple[int, Slot], Transfer] = {}
        self.gradients: dict[int, dict[str, None]] = {}
        self.scalars = _scalars(backend, values)
        self.there: dict[int, list[tuple[Slot, Slot]]] = {}
        self._leaves: list[torch.Tensor] | None = None
        self._absent: list[tuple[ElsewhereTensor, ElsewhereTensor]] | None = None
        self.state_at = [0] * len(values)
        self.draws = False
        self.phases: list[list[Action]] = []
        self.rows: dict[int, Row] = {}
        self.digests: list[int] = []
        self._compiled = [one.compiled for one in values]  # so that none of another schedule gets its `id`
        self._made: dict[tuple[int, Slot], str] = {}
        self._shared: dict[tuple[int, str], Transfer] = {}
        self._inputs = [{slot: one.flat[n] for n, slot in self._numbered(one)} for one in values]
        for number, one in enumerate(values):
            for output, slot in one.compiled.tangents.items():
                self._made[number, slot] = one.compiled.tangent_place[output]

    def extend(self, tasks: Iterable[tuple[int, int]]) -> None:
        """A further phase: microbatches and positions."""
        actions: list[Computation | Transfer] = []
        for microbatch, position in tasks:
            program = self._values[microbatch].program_at(position)
            if program is not None:
                self._before(actions, microbatch, program)
                rank = self._backend.ranks[program.place]
                actions.append(Computation(rank, microbatch, position))
                self._after(actions, microbatch, program)
        own = of_rank(in_messages(actions, _bytes_of, JOINED_BYTES), self._backend.wires.rank)
        self.phases.append(own)
        messages = [one for one in own if isinstance(one, Message)]
        self.rows |= {one.number: Row.of(one) for message in messages for one in message.transfers}
        lines = "\n".join(map(str, self.transfers))
        self.digests.append(int.from_bytes(hashlib.sha256(lines.encode()).digest()[:7]))

    def let_go(self) -> None:
        """No further phase comes: the values of the call that it was made for are let go."""
        self._values, self._inputs = (), []

    def places_of(self, leaf: int) -> list[str]:
        """Where parts of a gradient are made, by `id` of its leaf."""
        return list(self.gradients.get(leaf, ()))

    def leaves_here(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Of what gets gradients, what lies here, or gets a part of its gradient from here."""
        if self._leaves is None:
            own = self._backend.own
            self._leaves = [
                leaf
                for leaf in leaves
                if not isinstance(leaf, ElsewhereTensor) or own in self.gradients.get(id(leaf), ())
            ]
        return self._leaves

    def note_gradients(self, leaves: Sequence[torch.Tensor]) -> None:
        """Weights of other ranks that got a gradient there have one here, without values."""
        if self._absent is None:
            self._absent = [
                (leaf, ElsewhereTensor(leaf, leaf.place, f"the gradient of {leaf.called}", leaf.device))
                for leaf in leaves
                if isinstance(leaf, ElsewhereTensor) and id(leaf) in self.gradients
            ]
        for leaf, grad in self._absent:
            if leaf.grad is None:
                leaf.grad = grad

    def words(self, one: Computation | Transfer) -> str:
        """What an action computes, or brings: whose forward or backward."""
        if isinstance(one, Computation):
            return self._words(one.microbatch, one.position)
        if one.slot == STATE:
            return "the state of the random generator"
        compiled = self._compiled[one.microbatch]
        position = compiled.cutting.position.get(compiled.node_of(one.original))
        return "a weight" if position is None else self._words(one.microbatch, position)

    def _words(self, microbatch: int, position: int) -> str:
        cutting = self._compiled[microbatch].cutting
        runs = cutting.runs_of(position)
        pairs = zip(self._graph.code_order(), cutting.units.run_of, strict=True)
        inside = [name for name, run in pairs if run in runs]
        layers = [name for name in inside if self._graph.costs(name).kind == "layer"] or inside
        between = " to ".join(dict.fromkeys([layers[0], layers[-1]])) if layers else "no layer"
        return f"{'forward' if cutting.is_forward(position) else 'backward'} of {between}"

    @staticmethod
    def _numbered(values: Values) -> list[tuple[int, Slot]]:
        return [(number, slot) for number, slot in enumerate(values.compiled.inputs) if slot is not None]

    def _before(self, actions: list[Computation | Transfer], microbatch: int, program: Program) -> None:
        """What a program reads from other ranks, unless it was sent there already."""
        for copy, original in program.copies:
            if copy in program.sent:
                continue
            source = self._where(microbatch, original)
            if source is None or source == program.place:
                continue
            known = self.arrivals.get((microbatch, copy))
            weight = self._inputs[microbatch].get(original)
            shared = None if weight is None or (microbatch, original) in self._made else id(weight)
            if known is None and shared is not None:
                known = self._shared.get((shared, program.place))
            if known is None:
                known = self._sent(actions, microbatch, (copy, original), (source, program))
                known.fetched = True
            self.arrivals[microbatch, copy] = known
            if shared is None:
                known.uses += 1
            else:
                known.shared = True
                self._shared[shared, program.place] = known
        rank = self._backend.ranks[program.place]
        if program.random:
            self.draws = True
            if self.state_at[microbatch] != rank:
                actions.append(self.state_sent(microbatch, rank))

    def _after(self, actions: list[Computation | Transfer], microbatch: int, program: Program) -> None:
        for slot in program.makes:
            self._made[microbatch, slot] = program.place
            for copy, place in program.sends.get(slot, ()):
                source = (program.place, program)
                self.arrivals[microbatch, copy] = sent = self._sent(
                    actions, microbatch, (copy, slot), source, self._backend.ranks[place]
                )
                sent.last = copy == list(program.sends[slot])[-1][0]
        values = self._values[microbatch]
        for _, name in program.written:
            tensor = values.flat[name]
            if self._backend.place_of(tensor) != program.place:
                raise CompileError(
                    f"a buffer of shape {tuple(tensor.shape)} lies on {self._backend.place_of(tensor)}, and "
                    f"is written on {program.place}, another rank: place the layers that write it together"
                )
            for other, found in enumerate(self._inputs):
                for slot, one in found.items():
                    if one is tensor and other != microbatch:
                        self._made[other, slot] = program.place
        for _, name in program.gradients:
            self.gradients.setdefault(id(values.flat[name]), {})[program.place] = None

    def _where(self, microbatch: int, slot: Slot) -> str | None:
        """Where a value lies; None if every rank has it: inputs of the call, constants of the code."""
        made = self._made.get((microbatch, slot))
        if made is not None:
            return made
        found = self._inputs[microbatch].get(slot)
        return None if found is None or id(found) not in self._weights else self._backend.place_of(found)

    def _sent(
        self,
        actions: list[Computation | Transfer],
        microbatch: int,
        slots: tuple[Slot, Slot],
        source: tuple[str, Program],
        target: int | None = None,
    ) -> Transfer:
        copy, original = slots
        place, program = source
        values = self._values[microbatch]
        ranks = self._backend.ranks
        looks: Any = self._inputs[microbatch].get(original)
        if looks is None:
            looks = values.compiled.node_of(original).meta["val"]
        if not isinstance(looks, torch.Tensor):
            raise CompileError(
                f"{program.name} reads a {type(looks).__name__} that another rank makes, and only tensors "
                "travel: place the layers around it together"
            )
        made = Transfer(
            number=len(self.transfers),
            source=ranks[place],
            target=ranks[program.place] if target is None else target,
            microbatch=microbatch,
            slot=copy,
            original=original,
            backward=not values.is_forward(program.position),
            shape=tuple(looks.shape),
            stride=tuple(looks.stride()),
            dtype=str(looks.dtype).removeprefix("torch."),
        )
        self.transfers.append(made)
        actions.append(made)
        return made

    def state_sent(self, microbatch: int, rank: int) -> Transfer:
        """The state of a random generator goes to the rank that draws next."""
        length = len(self._backend.draw_state())
        number, source = len(self.transfers), self.state_at[microbatch]
        made = Transfer(number, source, rank, microbatch, STATE, STATE, False, (length,), (1,), "uint8")
        self.transfers.append(made)
        self.state_at[microbatch] = rank
        return made


def _bytes_of(one: Transfer) -> int:
    return prod(one.shape) * cast(torch.dtype, getattr(torch, one.dtype)).itemsize


def _has_one_number(values: Values, output: int) -> bool:
    """Whether an output has one number here: one with rows has, in a microbatch of one row."""
    outputs = values.compiled.joint.outputs
    node = outputs[output] if output < len(outputs) else None
    return isinstance(node, fx.Node) and node.meta["val"].numel() == 1


def _scalars(backend: RankDevices, values: Sequence[Values]) -> list[Scalars]:
    found: dict[tuple[int, torch.dtype], Scalars] = {}
    for microbatch, one in enumerate(values):
        for number, node in enumerate(one.compiled.joint.outputs):
            place = None if isinstance(node, int) else one.compiled.place_of(node)
            if place is None:
                continue
            looks = node.meta["val"]  # type: ignore[union-attr]
            if all(_has_one_number(each, number) for each in values):
                kind = backend.ranks[place], looks.dtype
                found.setdefault(kind, Scalars(*kind)).outputs.append((microbatch, number, looks.shape))
    return list(found.values())
