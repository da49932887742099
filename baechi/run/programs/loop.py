"""Runs programs of microbatches, task by task: values are fetched, sent on, and dropped after use."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import dropwhile, islice
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.backend.transfer import arrive, depart, transfer
from baechi.backend.way import Departed
from baechi.errors import BaechiError, note_microbatch
from baechi.run.pipeline.executor import AHEAD
from baechi.run.pipeline.lanes.random_states import RandomStates
from baechi.run.programs.program import Compiled, Program, Programs, Run, Slot
from baechi.run.state.caller_state import CallerState
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.private.tensors import add_each, storage_address, write_count
from baechi.torchlib.tensors.layout import lay, span_of
from baechi.torchlib.tensors.references import has_memory_alone
from baechi.torchlib.tensors.storage import UNSET, stamp


class Values:
    """The values of one microbatch.

    Args:
        compiled: what its programs are made of.
        flat: the inputs of the captured graph.
        given: the outputs that may get gradients.
        like: the values of another microbatch, which has run nothing yet; most inputs are the same.
        own: the numbers of the others.

    Attributes:
        ids: the `id` of each input.
        kind: what values that run the same programs have in common.
        outputs: by number, what programs made of the model's outputs.
        backward: the programs of backward, when it is known which outputs got gradients.
    """

    def __init__(
        self,
        compiled: Compiled,
        flat: Sequence[Any],
        given: frozenset[int],
        like: "Values | None" = None,
        own: Sequence[int] = (),
    ) -> None:
        self.compiled, self.flat, self._given, self.like, self.own = compiled, flat, given, like, own
        self.ids = tuple(map(id, flat))
        self.kind = compiled, given
        self.by_slot: dict[Slot, torch.Tensor]
        self.slot_of: dict[int, Slot]
        if like is None:
            self.by_slot, self.slot_of, own = dict(compiled.constants), {}, range(len(flat))
        else:
            self.by_slot, self.slot_of = dict(like.by_slot), dict(like.slot_of)
            for number in own:
                self.slot_of.pop(like.ids[number], None)
        for number in own:
            slot, value = compiled.inputs[number], flat[number]
            if slot is not None:
                self.slot_of[id(value)] = slot
                if not isinstance(value, ElsewhereTensor):  # what has no values here is not looked at
                    self.by_slot[slot] = value
        self.underway: dict[Slot, tuple[torch.Tensor, Departed]] = {}
        self.outputs: dict[int, torch.Tensor] = {}
        self.forward = compiled.programs(given, forward=True)
        self.backward: Programs | None = None
        self.left = dict(compiled.readers(given))

    def program_at(self, position: int) -> Program | None:
        """The program of a position, if there is one."""
        found = self.forward.by_position.get(position)
        if found is None and self.backward is not None:
            found = self.backward.by_position.get(position)
        return found

    def all_programs(self) -> Iterator[Program]:
        """The programs of forward, then of backward as it may be."""
        yield from self.forward.by_position.values()
        yield from self.compiled.programs(self._given, forward=False).by_position.values()

    def weights_there(
        self, place_of: Callable[[torch.Tensor], str], others: Collection[Slot | None]
    ) -> dict[Slot, torch.Tensor]:
        """By slot of a copy, what lies there anyway: inputs that nothing writes, but for `others`."""
        written = {*others, *[self.compiled.inputs[number] for number in self.compiled.joint.written]}
        places = dict[Slot, str]()
        found = {}
        for program in self.all_programs():
            for copy, original in program.copies:
                value = self.by_slot.get(original)
                if value is None or original in written or not isinstance(value, torch.Tensor):
                    continue
                if original not in places:
                    places[original] = place_of(value)
                if places[original] == program.place:
                    found[copy] = value
        return found

    def touching(self) -> dict[int, set[int]]:
        """By `id` of an input that is written, the positions of forward that read or write it."""
        found = self.compiled.touching(self._given)
        return {id(self.flat[name]): positions for name, positions in found.items()}

    def is_forward(self, position: int) -> bool:
        """Whether a position is one of forward."""
        return self.compiled.cutting.is_forward(position)

    def output(self, number: int) -> Any:
        """An output of the model: what a program made, or what the call was given."""
        node = self.compiled.joint.outputs[number]
        if isinstance(node, int):
            return self.flat[node]
        if number in self.outputs:
            return self.outputs[number]
        return self.by_slot[self.compiled.slot_of(node)].clone()  # a constant of the code

    def tangent(self, backend: AbstractBackend, number: int, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of an output as backward takes it: where that was made, with its strides."""
        place = self.compiled.tangent_place[number]
        with torch.no_grad():
            if backend.place_of(grad) != place:
                grad = transfer(grad, backend, place)
            stride = self.compiled.joint.tangents[number].meta["val"].stride()
            if grad.stride() != stride or grad.layout != torch.strided:
                with backend.at(place, ""):
                    dense = grad.to_dense() if grad.layout != torch.strided else grad
                    made = torch.empty_strided(grad.shape, stride, dtype=grad.dtype, device=grad.device)
                    grad = made.copy_(dense)
        return grad

    def use(self, slots: Iterable[Slot]) -> None:
        """Values were read: after the last time they go."""
        left, by_slot = self.left, self.by_slot
        for slot in slots:
            times = left.get(slot, 0)
            if times > 1:
                left[slot] = times - 1
            elif times:
                del left[slot]
                by_slot.pop(slot, None)

    def go_back(self, tangents: dict[int, torch.Tensor]) -> None:
        """From now on it goes backward."""
        pattern = frozenset(tangents)
        self.backward = self.compiled.programs(pattern, forward=False)
        if pattern != self._given:  # forward is over
            self.left = dict(self.backward.readers)
        for number, grad in tangents.items():
            self.by_slot[self.compiled.tangents[number]] = grad


class Loop:
    """Runs tasks.

    Args:
        backend: the devices.
        values: by microbatch.
        draws: the states of the random generators; none where the caller's are drawn from.

    Attributes:
        totals: by `id` of an input and by place, its gradients, added up.
        count: how many programs ran.
    """

    def __init__(
        self, backend: AbstractBackend, values: Sequence[Values], draws: Sequence[RandomStates] = ()
    ) -> None:
        self._backend, self._values, self._draws = backend, values, draws
        self._in_rows = backend.sends_rows
        there: dict[int, Mapping[Slot, torch.Tensor]] = {}
        for one in values:  # weights are where they are read, mostly: so they are not fetched
            first = one.like or one
            if id(first) not in there:
                there[id(first)] = self._weights_there(first)
            one.by_slot.update(there[id(first)])
        self.totals: dict[tuple[int, str], torch.Tensor] = {}
        self._added: set[tuple[int, str]] = set()
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._shared = set(values[0].slot_of) & set(values[-1].slot_of) if len(values) > 1 else set()
        self._shared |= {id(constant) for one in values for constant in one.compiled.constants.values()}
        self._copies: dict[tuple[int, str], torch.Tensor] = {}
        self._issued: defaultdict[str, deque[Any]] = defaultdict(deque)
        self._versions: list[tuple[torch.Tensor, int]] = []
        self.count = 0

    def _weights_there(self, first: Values) -> Mapping[Slot, torch.Tensor]:
        """By slot of a copy, the weights that lie where microbatches like the first one read them."""
        others = {one.compiled.inputs[number] for one in self._values for number in one.own}
        return first.weights_there(self._backend.place_of, others)

    def run(self, tasks: Iterable[tuple[int, int]]) -> None:
        """Run programs in an order."""
        state = CallerState.now()
        with state._replace(grad=False, autocast=(False,) * len(state.autocast)).restored():
            for microbatch, position in tasks:
                values = self._values[microbatch]
                program = values.program_at(position)
                if program is not None:
                    try:
                        self._task(microbatch, values, program)
                    except BaseException as error:
                        if len(self._values) > 1:
                            note_microbatch(error, microbatch)
                        raise

    def write(self, assigned: Collection[torch.Tensor], *, waits: bool) -> None:
        """Forward is over: inputs that were written (buffers) get their new values.

        Args:
            assigned: buffers that others take the places of, so that they stay as they are.
            waits: whether backward is put off: then what it reads may not be written until then.
        """
        with torch.no_grad():
            for tensor, value in self._written.values():
                if any(tensor is one for one in assigned):
                    continue
                for values in self._values:
                    slot = values.slot_of.get(id(tensor))
                    if slot is not None and values.by_slot.get(slot) is tensor:
                        values.by_slot[slot] = tensor.clone()  # backward reads it as it was
                home = self._backend.place_of(tensor)
                if self._backend.place_of(value) != home:
                    value = transfer(value, self._backend, home)
                with self._backend.at(home, ""):
                    tensor.copy_(value)
        for values in self._values if waits else ():  # what is kept of weights are often views of them
            for tensor in values.by_slot.values():
                if not tensor.is_inference():
                    self._versions.append((tensor, write_count(tensor)))

    def gradients(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The gradients that were added up, each where its leaf lies, in its own memory; they are taken."""
        backend, by_leaf = self._backend, dict[int, list[tuple[str, torch.Tensor]]]()
        for (name, place), grad in self.totals.items():
            by_leaf.setdefault(name, []).append((place, grad))
        self.totals.clear()
        found: list[torch.Tensor | None] = []
        memory: set[int] = set()
        with torch.no_grad():
            # all are sent before any are added up
            parts = [self._parts_of(leaf, by_leaf.pop(id(leaf), ())) for leaf in leaves]
            for leaf, mine in zip(leaves, parts, strict=True):
                total = None
                for part in mine:
                    grad = part()
                    if total is None:
                        total = grad
                    else:
                        with backend.at(backend.place_of(leaf), ""):
                            total = total + grad
                mine.clear()
                if total is not None and total.layout == torch.strided:
                    address = storage_address(total.untyped_storage())
                    if address in memory:
                        with backend.at(backend.place_of(leaf), ""):
                            total = total.clone()
                    memory.add(address)
                found.append(total)
        return found

    def places_of(self, leaf: int) -> list[str]:
        """Where parts of a gradient were made, by `id` of its leaf."""
        return [place for name, place in self.totals if name == leaf]

    def _parts_of(
        self, leaf: torch.Tensor, made: Iterable[tuple[str, torch.Tensor]]
    ) -> list[Callable[[], torch.Tensor]]:
        """The parts of a leaf's gradient, which are on their way to it."""
        home, found = self._backend.place_of(leaf), list[Callable[[], torch.Tensor]]()
        for place, grad in made:
            if place == home:
                found.append(partial(itself, grad))
            else:
                stamp(grad, place, UNSET, renew=False)
                found.append(partial(arrive, *depart(grad, self._backend, home)))
        return found

    def check_unchanged(self) -> None:
        """Before a backward that was put off: nothing that it reads was written since."""
        for tensor, version in self._versions:
            if write_count(tensor) != version:
                raise BaechiError(
                    f"a weight or input, seen in the shape {tuple(tensor.shape)}, which backward reads, was "
                    "written between the model's call and backward(): call optimizer.step() after it, or "
                    "distribute the model without compile="
                )
        self._versions = []

    def _task(self, microbatch: int, values: Values, program: Program) -> None:
        backend, place, by_slot = self._backend, program.place, values.by_slot
        issued = self._issued[place]
        while len(issued) >= AHEAD:  # what these free is taken until then
            backend.wait_on_host(issued.popleft(), place)
        backend.spend("task", place)
        for slot, original in program.copies:
            if slot not in by_slot:
                by_slot[slot] = self._fetched(values, slot, original, place)
            if original in values.left and slot not in program.sent:
                values.use((original,))
        given = [by_slot[slot] for slot in program.reads]
        values.use(program.counted)
        run = program.run
        if program.add is not None:
            keys = [(values.ids[name], place) for name in program.added]
            if self._added.issuperset(keys):
                run, given = program.add, [*given, *[self.totals[key] for key in keys]]
        with backend.at(place, program.name):
            made = list(self._drawn(microbatch, run, given) if program.random else run(given))
        given, self.count = [], self.count + 1
        self._keep(values, program, made)
        stream = backend.compute_stream(place)
        if stream is not None:
            issued.append(backend.record(stream))

    def _keep(self, values: Values, program: Program, made: list[Any]) -> None:
        """Keep what a program made: outputs, writes, gradients, and what others read."""
        for number, output in program.outputs:
            stamp(made[number], program.place, UNSET, renew=False)
            values.outputs[output] = made[number]
        for number, name in program.written:
            stamp(made[number], program.place, UNSET, renew=False)
            self._write(values, name, made[number])
        if program.gradients:
            self._add(values, program, made)
        left, by_slot, sends = values.left, values.by_slot, program.sends
        for number, slot in enumerate(program.makes):
            value, made[number] = made[number], None  # what is only sent goes before the next is sent
            if slot in left:
                by_slot[slot] = value
            if slot in sends:
                self._send_on(values, slot, value, program)
            del value

    def _send_on(self, values: Values, slot: Slot, value: Any, program: Program) -> None:
        """A value was made: who else reads it is sent a copy at once."""
        for copy, place in program.sends[slot]:
            copied, departed = depart(value, self._backend, place, None, program.place)
            values.underway[copy] = self._laid(values, slot, copied), departed

    def _fetched(self, values: Values, slot: Slot, original: Slot, place: str) -> Any:
        """A value at a place: it is on its way, or it is sent now; what microbatches share is sent once."""
        value = values.by_slot.get(original)
        key = id(value), place
        found: Any = self._copies.get(key)
        if found is not None:
            return found
        if slot in values.underway:
            return arrive(*values.underway.pop(slot))
        found = value
        if isinstance(value, torch.Tensor) and self._backend.place_of(value) != place:
            found = self._laid(values, original, transfer(value, self._backend, place))
        if id(value) in self._shared:
            self._copies[key] = found
        return found

    def _laid(self, values: Values, slot: Slot, copied: torch.Tensor) -> torch.Tensor:
        """A copy with the strides of the captured graph, where only rows of bytes travel: see `run.ranks`."""
        if not self._in_rows or slot in values.compiled.inputs:
            return copied
        strides = values.compiled.node_of(slot).meta["val"].stride()
        if copied.layout != torch.strided or copied.stride() == strides:
            return copied
        there = copied.untyped_storage().nbytes() // copied.element_size() - copied.storage_offset()
        if span_of(copied.shape, strides) > there:
            return copied
        with torch.no_grad(), without_dispatch_modes():  # it is the same memory
            laid = copied.as_strided(copied.shape, strides)
            lay(copied.clone(), laid)
            return laid

    def _write(self, values: Values, name: int, value: torch.Tensor) -> None:
        """A new value of an input: the microbatches after this one read it."""
        tensor = values.flat[name]
        self._written[id(tensor)] = tensor, value
        after = dropwhile(lambda one: one is not values, self._values)
        for later in islice(after, 1, None):  # the backward of earlier ones reads what they read
            if id(tensor) in later.slot_of:
                later.by_slot[later.slot_of[id(tensor)]] = value

    def _add(self, values: Values, program: Program, made: Sequence[Any]) -> None:
        """Add the gradients that a program made to those that are there."""
        totals, added, place = self.totals, self._added, program.place
        before: list[torch.Tensor] = []
        more: list[torch.Tensor] = []
        for number, name in program.gradients:
            grad, key = made[number], (values.ids[name], place)
            if grad is None:  # it was added inside
                continue
            if key not in totals:
                totals[key] = grad
                if name in program.added and has_memory_alone(grad):
                    added.add(key)
            elif key in added:
                before.append(totals[key])
                more.append(grad)
            else:  # the first one may share memory with what programs still read
                with self._backend.at(place, ""):
                    totals[key] = totals[key] + grad
                added.add(key)
        if before:
            with self._backend.at(place, ""):
                add_each(before, more)

    def _drawn(self, microbatch: int, run: Run, given: list[Any]) -> Sequence[Any]:
        """Run a program that draws: from its microbatch's states, if there are any."""
        with without_dispatch_modes(), without_torch_function():
            for states in self._draws:
                states.set(states.own[microbatch])
        try:
            return run(given)
        finally:
            with without_dispatch_modes(), without_torch_function():
                for states in self._draws:
                    states.have_drawn = True
                    states.own[microbatch] = states.now()
                    states.set(states.before)


def itself(grad: torch.Tensor) -> torch.Tensor:
    """A part of a gradient that is there."""
    return grad
