"""Runs one rank's part of a schedule: its programs, and its ends of the transfers, in the one order."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from baechi.backend.ranks.devices import RankDevices
from baechi.backend.ranks.limits import limit_s, limit_within_s
from baechi.backend.ranks.spot import Spot
from baechi.errors import RankError
from baechi.order.pipeline.by_rank import Action, Computation, Message, Transfer
from baechi.run.pipeline.lanes.random_states import RandomStates
from baechi.run.programs.loop import Loop, Values, itself
from baechi.run.programs.program import Program, Run, Slot
from baechi.run.ranks.schedule import STATE, Row, Schedule
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function
from baechi.torchlib.tensors.layout import lay, memory_for_row, strides_without_gaps

_TIME_BYTES = 8
"""Behind a value that is emulated: when it arrives."""


@dataclass(slots=True, eq=False)
class Coming:
    """A message that another rank sends.

    Args:
        source: that rank.
        row: what is received.
        work: what to wait for; None if nothing travels, or if it is here.
    """

    source: int
    row: torch.Tensor
    work: Any


class Room(NamedTuple):
    """Memory for a value that another rank sends.

    Args:
        whole: the memory.
        flat: the same in one row; memory of its own, where the value has gaps or shows elements twice.
        bytes: its bytes in the message, with the time of arrival where it is emulated; None if the message is
            received into `flat`.
        is_apart: whether `flat` is memory of its own.
    """

    whole: torch.Tensor
    flat: torch.Tensor
    bytes: slice | None
    is_apart: bool = False


class RankLoop(Loop):
    """Runs actions.

    Args:
        backend: the devices.
        values: by microbatch.
        draws: see `Loop`.
        schedule: the order.
    """

    _backend: RankDevices

    def __init__(
        self,
        backend: RankDevices,
        values: Sequence[Values],
        draws: Sequence[RandomStates],
        schedule: Schedule,
    ) -> None:
        self._schedule = schedule
        super().__init__(backend, values, draws)
        self._each = values
        self._begin_backward: Callable[[int], object] = _nothing
        self._begun: set[int] = set()
        self._room_device = backend.message_device
        self._now: Computation | Transfer | None = None
        self._number = -1
        self._is_timed = False
        self._leaving: dict[tuple[int, Slot], torch.Tensor] = {}
        self._underway: dict[int, tuple[Coming, Room]] = {}
        self._arrived: dict[int, torch.Tensor] = {}
        self._states: dict[int, torch.Tensor] = {}
        self._numbers = {id(one): number for number, one in enumerate(values)}
        if backend.wires.rank == 0:
            with backend.packing():
                for number in range(len(values)):
                    seeded = draws[0].own[number] if draws else None
                    state = backend.draw_state() if seeded is None else backend.seeded_draw_state(seeded)
                    self._states[number] = state

    def _weights_there(self, first: Values) -> Mapping[Slot, torch.Tensor]:
        """They do not move, so which these are is found once."""
        known, kind = self._schedule.there, id(first.compiled)
        if kind not in known:
            found = super()._weights_there(first)
            pairs = {pair for program in first.all_programs() for pair in program.copies}
            known[kind] = [(copy, original) for copy, original in pairs if copy in found]
        return {copy: first.by_slot[original] for copy, original in known[kind]}

    def act(
        self, schedule: Schedule, phase: int, begin_backward: Callable[[int], object] | None = None
    ) -> None:
        """Do this rank's part of a phase.

        Args:
            schedule: the order.
            phase: which of its phases.
            begin_backward: makes the gradient with which a microbatch goes backward, where that is here.
        """
        self._schedule, wires = schedule, self._backend.wires
        self._begin_backward = begin_backward or _nothing
        if schedule.has_run:
            wires.limit_s = limit_within_s(max(wires.predicted_s, schedule.slowest_s))
        begun_s = time.monotonic()
        if schedule.phases[phase]:
            first = schedule.phases[phase][0]
            self._now = first.transfers[0] if isinstance(first, Message) else first
            wires.be_at(self._spot)
        self.run(self._tasks(schedule.phases[phase]))
        wires.wait_for_sends()
        self._leaving.clear()
        self._begin_backward = _nothing  # else what holds the values would hold itself
        if schedule.has_run:
            schedule.slowest_s = max(schedule.slowest_s, time.monotonic() - begun_s)
        schedule.has_run = phase == len(schedule.phases) - 1 or schedule.has_run
        wires.limit_s = limit_s()
        wires.be_at(partial(Spot, wires.step))

    def _tasks(self, actions: Sequence[Action]) -> Iterator[tuple[int, int]]:
        rank, self._is_timed = self._backend.wires.rank, self._backend.clock_s is not None
        for one in actions:
            if isinstance(one, Computation):
                self._now = one
                if not self._each[one.microbatch].is_forward(one.position):
                    self._begin(one.microbatch)
                self._leaving.clear()
                yield one.microbatch, one.position
                continue
            self._now = one.transfers[0]
            self._number = self._now.number
            if one.source == rank:
                self._send(one)
            else:
                self._receive(one)

    def _spot(self) -> Spot:
        """Where this rank is, for messages."""
        wires, one = self._backend.wires, self._now
        assert one is not None
        words = self._schedule.words(one)
        if isinstance(one, Transfer) and one.source == wires.rank:
            words = f"the reader of {words}"
        return Spot(wires.step, self._number, one.microbatch, words)

    def _begin(self, microbatch: int) -> None:
        if microbatch not in self._begun:
            self._begun.add(microbatch)
            self._begin_backward(microbatch)

    def written(self) -> list[torch.Tensor]:
        """The buffers of this rank that programs wrote."""
        return [tensor for tensor, _ in self._written.values()]

    # --- transfers

    def _send(self, message: Message) -> None:
        joined = len(message.transfers) > 1
        rows = [self._leaves(one, in_row=joined) for one in message.transfers]
        self._put(rows, message.target, backward=message.backward)

    def _leaves(self, one: Transfer, *, in_row: bool) -> torch.Tensor:
        """A value as it travels; where that is emulated, it departs now."""
        values, backend = self._each[one.microbatch], self._backend
        if one.slot == STATE:  # which takes no device's time
            with backend.packing():
                return self._states.pop(one.microbatch).to(self._room_device)
        if one.backward:
            self._begin(one.microbatch)
        key = one.microbatch, one.original
        leaving = self._leaving.pop(key, None) if one.last else self._leaving.get(key)
        value = values.by_slot[one.original] if leaving is None else leaving
        there_s = backend.departs(value, backend.of_rank[one.target])
        with backend.packing():
            row = self._schedule.rows[one.number]
            flat = _with_time(_flat(value, one, row, in_row=in_row or there_s is not None), there_s)
        for _ in range(one.uses):
            values.use((one.original,))
        return flat

    def _put(self, rows: Sequence[torch.Tensor], target: int, *, backward: bool) -> None:
        """Send a message."""
        row = rows[0]
        if len(rows) > 1:
            with self._backend.packing():
                row = torch.cat([one.view(torch.uint8) for one in rows])
        if row.numel():
            self._backend.wires.send(row, target, backward=backward)

    def _receive(self, message: Message) -> None:
        """Take memory for what another rank sends, and begin to receive it."""
        backend, each = self._backend, message.transfers
        with backend.packing():
            rooms, end = [], 0
            for one in each:
                timed = self._is_timed and one.slot != STATE
                is_row = not timed and len(each) == 1
                row = self._schedule.rows[one.number]
                whole, flat = _room(one, row, self._room_device, in_row=not is_row)
                start, end = end, end + flat.nbytes + _TIME_BYTES * timed
                apart = row.strides != one.stride
                rooms.append(Room(whole, flat, None if is_row else slice(start, end), apart))
        coming = self._coming(rooms, end, message.source, backward=message.backward)
        for one, room in zip(each, rooms, strict=True):
            self._underway[one.number] = coming, room
            if self._is_timed and one.slot != STATE and not one.fetched:
                backend.expects(room.whole, backend.of_rank[one.source])

    def _coming(self, rooms: Sequence[Room], length: int, source: int, *, backward: bool) -> Coming:
        """Begin to receive a message, for which there is memory."""
        row = rooms[0].flat
        if rooms[0].bytes is not None:
            with self._backend.packing():
                row = torch.empty(length, dtype=torch.uint8, device=self._room_device)
        work = self._backend.wires.receive(row, source, backward=backward) if row.numel() else None
        return Coming(source, row, work)

    def _awaited(self, coming: Coming, room: Room, *, timed: bool, expected: bool) -> torch.Tensor:
        """A value that another rank sent, when it is there."""
        backend = self._backend
        work, coming.work = coming.work, None
        if work is not None:
            backend.wires.wait(work, coming.source)
        there_s, place = None, backend.of_rank[coming.source]
        if room.bytes is not None:
            with backend.packing():
                there_s = _taken_out(coming.row[room.bytes], room.flat, timed=timed)
        if room.is_apart:
            with backend.packing():
                lay(room.flat.view(room.whole.shape), room.whole)
        if there_s is not None:
            if not expected:
                backend.expects(room.whole, place)
            backend.arrives(room.whole, place, there_s)
        return room.whole

    def _taken(self, one: Transfer) -> torch.Tensor:
        """Wait for what another rank sent."""
        if one.number in self._arrived:
            return self._arrived[one.number]
        reads, self._now = self._now, one
        timed = self._is_timed and one.slot != STATE
        whole = self._awaited(*self._underway.pop(one.number), timed=timed, expected=not one.fetched)
        self._now = reads
        if one.shared:
            self._arrived[one.number] = whole
        return whole

    def _fetched(self, values: Values, slot: Slot, original: Slot, place: str) -> Any:
        brought = self._schedule.arrivals.get((self._numbers[id(values)], slot))
        if brought is None:
            return super()._fetched(values, slot, original, place)
        return self._taken(brought)

    def _send_on(self, values: Values, slot: Slot, value: torch.Tensor, program: Program) -> None:
        if program.sends.get(slot):
            self._leaving[self._numbers[id(values)], slot] = value

    # --- random numbers

    def _drawn(self, microbatch: int, run: Run, given: list[Any]) -> Sequence[Any]:
        backend = self._backend
        with without_dispatch_modes(), without_torch_function():
            before = backend.draw_state()
            if microbatch not in self._states:
                brought = self._last_state(microbatch)
                self._states[microbatch] = self._taken(brought).cpu()
            backend.set_draw_state(self._states[microbatch])
        try:
            return run(given)
        finally:
            with without_dispatch_modes(), without_torch_function():
                self._states[microbatch] = backend.draw_state()
                backend.set_draw_state(before)

    def _last_state(self, microbatch: int) -> Transfer:
        found = [
            one
            for one in self._schedule.transfers
            if one.slot == STATE and one.microbatch == microbatch and one.number in self._underway
        ]
        return found[0]

    def settle_state(self) -> None:
        """A step that drew from the caller's generator: all ranks go on from where it is."""
        wires, backend = self._backend.wires, self._backend
        last = self._schedule.state_at[0]
        state = (self._states[0] if wires.rank == last else backend.draw_state()).to(self._room_device)
        wires.share(state, last)
        backend.set_draw_state(state.cpu())

    # --- gradients

    def gradients(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Those of leaves that lie here, from all ranks; None for others'."""
        found = super().gradients(leaves)
        self._backend.wires.wait_for_sends()
        return found

    def _parts_of(
        self, leaf: torch.Tensor, made: Iterable[tuple[str, torch.Tensor]]
    ) -> list[Callable[[], torch.Tensor]]:
        backend, own = self._backend, dict(made)
        places = self._schedule.gradients.get(id(leaf), ())
        found: list[Callable[[], torch.Tensor]] = []
        for place in places:
            if isinstance(leaf, ElsewhereTensor):
                if place == backend.own:
                    there_s = backend.departs(own[place], leaf.place)
                    with backend.packing():
                        flat = _with_time(_dense(own[place], leaf), there_s)
                    self._put([flat], backend.ranks[leaf.place], backward=True)
            elif place == backend.own:
                found.append(partial(itself, own[place]))
            else:
                timed = backend.clock_s is not None
                with backend.packing():
                    whole, flat = _room_like(leaf, self._room_device)
                length = flat.nbytes + _TIME_BYTES * timed
                room = Room(whole, flat, slice(0, length) if timed else None)
                coming = self._coming([room], length, backend.ranks[place], backward=True)
                if timed:
                    backend.expects(whole, place)
                found.append(partial(self._awaited, coming, room, timed=timed, expected=True))
        return found


def _nothing(microbatch: int) -> None:
    """The backward of a microbatch begins with what it was given."""


def _with_time(flat: torch.Tensor, there_s: float | None) -> torch.Tensor:
    """A row, and behind it when it arrives."""
    if there_s is None:
        return flat
    return torch.cat([flat.view(torch.uint8), _in_bytes(there_s)])


def _in_bytes(seconds: float) -> torch.Tensor:
    return torch.tensor([seconds], dtype=torch.float64).view(torch.uint8)


def _taken_out(row: torch.Tensor, flat: torch.Tensor, *, timed: bool) -> float | None:
    """Take a value out of the bytes of a message; returns when it arrives, which is behind it."""
    there_s = row[-_TIME_BYTES:].clone().view(torch.float64).item() if timed else None
    flat.view(torch.uint8).copy_(row[:-_TIME_BYTES] if timed else row)
    return there_s


def _flat(value: torch.Tensor, one: Transfer, row: Row, *, in_row: bool) -> torch.Tensor:
    """A value as it travels: its memory, with no gaps."""
    if value.shape != one.shape or value.dtype is not row.dtype:
        raise RankError(f"{one} would be {value.dtype} of shape {tuple(value.shape)}")
    plain = value.detach().resolve_conj().resolve_neg()
    if plain.stride() != row.strides:
        made = torch.empty_strided(one.shape, row.strides, dtype=value.dtype, device=value.device)
        plain = made.copy_(plain)
    return plain if row.is_in_order and not in_row else plain.as_strided((row.size,), (1,))


def _room(
    one: Transfer, row: Row, device: torch.device, *, in_row: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for a value, with the strides that kernels count on, and the same as it travels."""
    if row.strides != one.stride:
        whole = memory_for_row(one.shape, one.stride, row.dtype, device)
        return whole, torch.empty(row.size, dtype=row.dtype, device=device)
    whole = torch.empty_strided(one.shape, row.strides, dtype=row.dtype, device=device)
    return whole, whole if row.is_in_order and not in_row else whole.as_strided((row.size,), (1,))


def _room_like(leaf: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for a gradient of a leaf, and the same in one row."""
    whole = torch.empty_strided(
        leaf.shape, strides_without_gaps(leaf.shape, leaf.stride()), dtype=leaf.dtype, device=device
    )
    return whole, whole.as_strided((whole.numel(),), (1,))


def _dense(total: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """A gradient as it travels, laid out as its leaf."""
    if total.layout != torch.strided:
        raise RankError(
            f"a sparse gradient of a weight of shape {tuple(leaf.shape)} would go to another rank: use "
            "sparse=False, or place the layers that read the weight together"
        )
    made = torch.empty_strided(
        leaf.shape, strides_without_gaps(leaf.shape, leaf.stride()), dtype=leaf.dtype, device=total.device
    )
    made.copy_(total)
    return made.as_strided((made.numel(),), (1,))
