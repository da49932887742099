"""A captured graph as programs for the devices of a plan: what each reads, makes, and sends on."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import fx

from baechi.backend import AbstractBackend, unwatched
from baechi.errors import CompileError
from baechi.records.pipeline.units import Units
from baechi.run.programs.blocks import Check, compiled_by_blocks
from baechi.run.programs.code import code_of
from baechi.run.programs.joint import Backward, Joint, joined
from baechi.run.programs.segments import Cutting, Segment, constants_of
from baechi.torchlib.private.graphs import inductor, inductor_decompositions

Slot = int
"""A value of a microbatch at a place: its own, or a copy."""

Run = Callable[[list[Any]], Sequence[Any]]
"""Takes a list of values, which it may empty, and returns values."""

_ADD = torch.ops.aten.add.Tensor


@dataclass(eq=False, slots=True)
class Program:
    """What runs a segment.

    Args:
        name: of the segment, in reports.
        place: the device.
        run: computes what it returns.
        position: when it runs in a microbatch.
        reads: the slots of what it takes.
        copies: of these, those that are copies: the slot, and that of the original.
        counted: of these, those that go after their last use: others are held by the caller anyway.
        makes: the slots of what it returns.
        sends: by slot of what it returns, the copies that are sent on at once: their slots, and where to.
        sent: the slots of copies that are sent to it: it need not fetch them.
        outputs: by place among what it returns, the outputs of the model that it is.
        written: by place among what it returns, the input whose new value it is.
        gradients: by place among what it returns, the inputs whose gradient it is, or a part of that.
        added: of these inputs, those whose gradient `add` adds to what is there.
        add: as `run`, given those gradients as well; None where they are not added inside of a program.
        random: whether it draws random numbers.
        after: the positions whose programs must have run.
    """

    name: str
    place: str
    run: Run
    position: int
    reads: tuple[Slot, ...]
    counted: tuple[Slot, ...]
    copies: tuple[tuple[Slot, Slot], ...]
    makes: tuple[Slot, ...]
    sends: dict[Slot, dict[tuple[Slot, str], None]] = field(default_factory=dict)
    sent: set[Slot] = field(default_factory=set)
    outputs: tuple[tuple[int, int], ...] = ()
    written: tuple[tuple[int, int], ...] = ()
    gradients: tuple[tuple[int, int], ...] = ()
    added: tuple[int, ...] = ()
    add: Run | None = None
    random: bool = False
    after: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Programs:
    """The programs of one direction, for gradients of some outputs.

    Args:
        by_position: they, in order.
        readers: by slot that is counted, how often programs read or fetch it.
    """

    by_position: Mapping[int, Program]
    readers: Mapping[Slot, int]


class Compiled:
    """A captured graph, ready to be made programs of.

    Args:
        captured: the graph, whose operations have notes of their runs.
        examples: its inputs, of which only shapes and the like are kept.
        units: the plan's runs and stages.
        backend: the devices.
        compiler: `"inductor"` or `"aot_eager"`.
        assigned: by input that is a buffer which is assigned anew, the output that it becomes.

    Attributes:
        tangent_place: where the gradient of an output is wanted: where the output is made.
        made: how many programs were compiled; each is when it is first called.
        spent_s: how long that took.
    """

    def __init__(
        self,
        captured: fx.GraphModule,
        examples: Sequence[Any],
        units: Units,
        backend: AbstractBackend,
        compiler: str,
        *,
        assigned: Mapping[int, int],
    ) -> None:
        self._backend, self._compiler = backend, compiler
        decompositions = inductor_decompositions() if compiler == "inductor" else {}
        self.joint: Joint = joined(captured, examples, decompositions, assigned)
        self.cutting = Cutting(self.joint, units, self._device_at)
        self._slots: dict[tuple[fx.Node, str | None], Slot] = {}
        self.inputs = [None if node is None else self._slot(node) for node in self.joint.inputs]
        self.tangents = {number: self._slot(node) for number, node in self.joint.tangents.items()}
        self.tangent_place = {number: self._tangent_place(number) for number in self.joint.tangents}
        self.constants = {self._slot(node): value for node, value in constants_of(self.joint).items()}
        self._held = {slot for slot in self.inputs if slot is not None} | self.constants.keys()
        self.made, self.spent_s = 0, 0.0
        self._made: dict[tuple[frozenset[int], bool], Programs] = {}
        self._readers: dict[frozenset[int], Mapping[Slot, int]] = {}
        self._check()

    def _tangent_place(self, number: int) -> str:
        node = self.joint.outputs[number]
        assert isinstance(node, fx.Node)
        return self._home(node) or self._backend.host

    def place_of(self, node: fx.Node) -> str | None:
        """Where a node's value is made; None if no program makes it."""
        return self._home(node)

    def slot_of(self, node: fx.Node) -> Slot:
        """The slot of a value where it is made."""
        return self._slot(node)

    def node_of(self, slot: Slot) -> fx.Node:
        """The node whose value a slot has."""
        return next(node for (node, _), one in self._slots.items() if one == slot)

    @cached_property
    def is_random(self) -> bool:
        """Whether forward draws random numbers."""
        return any(one.random for one in self.programs(frozenset(), forward=True).by_position.values())

    def touching(self, given: frozenset[int]) -> dict[int, set[int]]:
        """By input that is written, the positions of forward that read or write it."""
        programs = self.programs(given, forward=True).by_position.values()
        found: dict[int, set[int]] = {}
        for name in self.joint.written:
            slot, where = self.inputs[name], found.setdefault(name, set())
            for program in programs:
                reads = slot in program.reads or any(slot == original for _, original in program.copies)
                if reads or any(name == one for _, one in program.written):
                    where.add(program.position)
        return found

    def programs(self, given: frozenset[int], *, forward: bool) -> Programs:
        """The programs of one direction."""
        key = given, forward
        if key not in self._made:
            self._made[key] = self._programs(given, forward=forward)
        return self._made[key]

    def readers(self, given: frozenset[int]) -> Mapping[Slot, int]:
        """By slot that is counted, how often programs of either direction read or fetch it."""
        if given not in self._readers:
            found = Counter(self.programs(given, forward=True).readers)
            found.update(self.programs(given, forward=False).readers)
            self._readers[given] = dict(found)
        return self._readers[given]

    def _check(self) -> None:
        for number, node in self.joint.gradients.items():
            if self.cutting.is_value(node) or self.cutting.is_forward(self.cutting.position[node]):
                raise CompileError(f"the gradient of input {number} of its graph is no result of a backward")

    def _device_at(self, device: int) -> torch.device:
        name = self._backend.names[device]
        if self._compiler == "inductor":  # never inside of an emulation
            return self._backend.kernel_device(name) or torch.device("cpu")
        return self._backend.named_device(name)

    def _home(self, node: fx.Node) -> str | None:
        """Where a node's value is made; None where that is not for programs to say."""
        position = self.cutting.position.get(node)
        return None if position is None else self._backend.names[self.cutting.device_of(position)]

    def _check_of(self, node: fx.Node) -> Check:
        """When it is looked at the strides of what a segment reads."""
        if node not in self.joint.inputs:
            return "once"
        written = [self.joint.inputs[number] for number in self.joint.written]
        return "always" if node in written else "never"  # guards say what others look like

    def _slot(self, node: fx.Node, place: str | None = None) -> Slot:
        return self._slots.setdefault((node, place), len(self._slots))

    def _programs(self, given: frozenset[int], *, forward: bool) -> Programs:
        backward = self.joint.backward(given)
        parts = {number: self._terms(node, backward) for number, node in backward.gradients.items()}
        segments = self.cutting.segments(backward, parts, forward=forward)
        owners: dict[fx.Node, list[int]] = {}
        for number, nodes in parts.items():
            for node in nodes:
                owners.setdefault(backward.of(node), []).append(number)
        others = {node for segment in segments.values() for node in segment.reads}
        made = {position: self._program(segment, owners, others) for position, segment in segments.items()}
        makers = {slot: program for program in made.values() for slot in program.makes}
        readers: dict[Slot, int] = {}
        there = set() if forward else self._sent_forward(given)
        for program in made.values():
            for slot in program.counted:
                readers[slot] = readers.get(slot, 0) + 1
            for copy, original in program.copies:
                if copy in there:  # it stays for backward, so the original need not
                    program.sent.add(copy)
                elif original in makers:
                    makers[original].sends.setdefault(original, {})[copy, program.place] = None
                    program.sent.add(copy)
                elif (
                    original not in self._held
                ):  # what forward made for backward: it is fetched when it is needed
                    readers[original] = readers.get(original, 0) + 1
        return Programs(made, readers)

    def _sent_forward(self, given: frozenset[int]) -> set[Slot]:
        """The copies that forward sends."""
        programs = self.programs(given, forward=True).by_position.values()
        return {copy for program in programs for copy in program.sent}

    def _terms(self, node: fx.Node, backward: Backward) -> list[fx.Node]:
        """The gradients whose sum a gradient is, as far as they are made on several devices."""
        waiting, found = [node], list[fx.Node]()
        while waiting:
            one = backward.of(waiting.pop())
            sides = [side for side in one.all_input_nodes if side in self.cutting.position]
            is_sum = one.target is _ADD and not one.kwargs and len(sides) == 2
            if is_sum and len({self._home(side) for side in sides}) > 1:
                waiting += [side for side in sides if backward.of(side) not in backward.none]
            else:
                found.append(one)
        return found

    def _program(
        self, segment: Segment, owners: Mapping[fx.Node, list[int]], others: Collection[fx.Node]
    ) -> Program:
        place = self._backend.names[self.cutting.device_of(segment.position)]
        reads, copies, after = [], [], set[int]()
        for node in segment.reads:
            home = self._home(node)
            slot = self._slot(node, None if home == place else place)
            reads.append(slot)
            if home != place:
                copies.append((slot, self._slot(node)))
            if home is not None:
                after.add(self.cutting.position[node])
        makes = tuple(map(self._slot, segment.makes))
        where = {node: number for number, node in enumerate(segment.makes)}
        joint = self.joint
        outputs = [(where[node], n) for n, node in enumerate(joint.outputs) if node in where]
        written = [(where[node], n) for n, node in joint.written.items() if node in where]
        gradients = [(where[node], n) for node, ns in owners.items() if node in where for n in ns]
        forward = self.cutting.is_forward(segment.position)
        alone = [node for node in owners if node in where and len(owners[node]) == 1 and node not in others]
        added = tuple([owners[node][0] for node in alone])
        return Program(
            name=f"{'forward' if forward else 'backward'} {segment.position}",
            place=place,
            run=self._compiled(segment),
            position=segment.position,
            reads=tuple(reads),
            counted=tuple([slot for slot in reads if slot not in self._held]),
            copies=tuple(copies),
            makes=makes,
            outputs=tuple(outputs),
            written=tuple(written),
            gradients=tuple(gradients),
            added=added,
            add=self._compiled(segment, alone) if alone and self._compiler == "aot_eager" else None,
            random=segment.random,
            after=tuple(sorted(after)),
        )

    def _compiled(self, segment: Segment, added: Sequence[fx.Node] = ()) -> Run:
        """A segment as a function; it is compiled when it is first called."""
        function: Callable[..., Any] | None = None

        def run(values: list[Any]) -> Sequence[Any]:
            nonlocal function
            if function is None:
                begun_s = time.perf_counter()
                function = self._function(segment, added)
                self.spent_s, self.made = self.spent_s + time.perf_counter() - begun_s, self.made + 1
            found: Sequence[Any] = function(values)
            return found

        return run

    def _function(self, segment: Segment, added: Sequence[fx.Node]) -> Callable[..., Any]:
        if self._compiler == "inductor":
            device = self._device_at(self.cutting.device_of(segment.position))
            backward = not self.cutting.is_forward(segment.position)
            compile = partial(inductor, device=device, backward=backward)
            checks = list(map(self._check_of, segment.reads))
            key, name = (device, backward), f"program {segment.position}"
            return compiled_by_blocks(segment.module, checks, compile, key, name)
        with unwatched():
            return code_of(segment.adding(added) if added else segment.module, f"program {segment.position}")
