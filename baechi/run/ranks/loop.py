"""Runs one rank's part of a schedule: its programs, and its ends of the transfers, in the one order."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from baechi.backend.ranks.devices import RankDevices
from baechi.backend.ranks.limits import limit_s, limit_within_s
from baechi.backend.ranks.spot import Spot
from baechi.errors import RankError
from baechi.order.pipeline.by_rank import Action, Computation, Transfer
from baechi.run.pipeline.lanes.random_states import RandomStates
from baechi.run.programs.loop import Loop, Values
from baechi.run.programs.program import Program, Run, Slot
from baechi.run.ranks.schedule import STATE, Schedule
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.private.modes import without_dispatch_modes, without_torch_function


class RankLoop(Loop):
    """Runs actions.

    Args:
        backend: the devices.
        values: by microbatch.
        draws: see `Loop`.
        schedule: the order.
        begin_backward: makes the gradient with which the backward of a microbatch begins, where that is here.
    """

    _backend: RankDevices

    def __init__(
        self,
        backend: RankDevices,
        values: Sequence[Values],
        draws: Sequence[RandomStates],
        schedule: Schedule,
        begin_backward: Callable[[int], object] = lambda microbatch: None,
    ) -> None:
        super().__init__(backend, values, draws)
        self._each = values
        self._schedule, self._begin_backward = schedule, begin_backward
        self._begun: set[int] = set()
        self._number = -1
        self._leaving: dict[tuple[int, Slot], torch.Tensor] = {}
        self._underway: dict[int, tuple[int | None, torch.Tensor, torch.Tensor]] = {}
        self._arrived: dict[int, torch.Tensor] = {}
        self._states: dict[int, torch.Tensor] = {}
        for one in values:  # what has no values here is not looked at
            for slot in [slot for slot, value in one.by_slot.items() if isinstance(value, ElsewhereTensor)]:
                del one.by_slot[slot]
        self._numbers = {id(one): number for number, one in enumerate(values)}
        if backend.wires.rank == 0:
            for number in range(len(values)):
                seeded = draws[0].own[number] if draws else None
                state = backend.draw_state() if seeded is None else backend.seeded_draw_state(seeded)
                self._states[number] = state

    def act(self, schedule: Schedule, phase: int) -> None:
        """Do this rank's part of a phase."""
        self._schedule, wires = schedule, self._backend.wires
        if schedule.has_run:
            wires.limit_s = limit_within_s(max(wires.predicted_s, schedule.slowest_s))
        begun_s = time.monotonic()
        self.run(self._tasks(schedule.phases[phase]))
        wires.wait_for_sends()
        if schedule.has_run:
            schedule.slowest_s = max(schedule.slowest_s, time.monotonic() - begun_s)
        schedule.has_run = phase == len(schedule.phases) - 1 or schedule.has_run
        wires.limit_s = limit_s()
        wires.be_at(partial(Spot, wires.step))

    def _tasks(self, actions: Sequence[Action]) -> Iterator[tuple[int, int]]:
        wires, rank = self._backend.wires, self._backend.wires.rank
        for one in actions:
            values = self._each[one.microbatch]
            if isinstance(one, Transfer):
                self._number = one.number
            wires.be_at(partial(self._spot, one))
            if isinstance(one, Computation):
                if not values.is_forward(one.position):
                    self._begin(one.microbatch)
                self._leaving.clear()
                yield one.microbatch, one.position
            elif one.source == rank:
                self._send(one)
            else:
                self._receive(one)

    def _spot(self, one: Action) -> Spot:
        """Where this rank is at an action, for messages."""
        wires, words = self._backend.wires, self._schedule.words(one)
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

    def _send(self, one: Transfer) -> None:
        wires, values = self._backend.wires, self._each[one.microbatch]
        if one.backward:
            self._begin(one.microbatch)
        if one.slot == STATE:
            value = self._states.pop(one.microbatch).to(self._device())
        else:
            leaving = self._leaving.get((one.microbatch, one.original))
            value = values.by_slot[one.original] if leaving is None else leaving
        with torch.no_grad(), self._backend.at(self._backend.own, ""):
            flat = _flat(value, one)
        if flat.numel():
            wires.send(flat, one.target, backward=one.backward)
        for _ in range(one.uses):
            values.use((one.original,))

    def _receive(self, one: Transfer) -> None:
        with self._backend.at(self._backend.own, ""):
            whole, flat = _room(one, self._device())
        work = None
        if flat.numel():
            work = self._backend.wires.receive(flat, one.source, backward=one.backward)
        self._underway[one.number] = work, whole, flat

    def _taken(self, one: Transfer) -> torch.Tensor:
        """Wait for what another rank sent."""
        if one.number in self._arrived:
            return self._arrived[one.number]
        work, whole, _ = self._underway.pop(one.number)
        if work is not None:
            wires = self._backend.wires
            reads = wires.be_at(partial(self._spot, one))
            wires.wait(work, one.source)
            wires.be_at(reads)
        if one.shared:
            self._arrived[one.number] = whole
        return whole

    def _device(self) -> torch.device:
        return self._backend.named_device(self._backend.own)

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
        state = (self._states[0] if wires.rank == last else backend.draw_state()).to(self._device())
        wires.share(state, last)
        backend.set_draw_state(state.cpu())

    # --- gradients

    def gradients(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Those of leaves that lie here, from all ranks; None for others'."""
        backend, wires, found = self._backend, self._backend.wires, list[torch.Tensor | None]()
        parts: list[list[torch.Tensor]] = []
        waiting = []
        for leaf in leaves:
            home, mine = backend.place_of(leaf), list[torch.Tensor]()
            for place in self._schedule.gradients.get(id(leaf), ()):
                if place == backend.own:
                    total = self.totals.pop((id(leaf), place))
                    if home == place:
                        mine.append(total)
                    else:
                        wires.send(_dense(total, leaf), backend.ranks[home], backward=True)
                elif home == backend.own:
                    whole = torch.empty_strided(
                        leaf.shape, _strides(leaf), dtype=leaf.dtype, device=self._device()
                    )
                    flat = whole.as_strided((whole.numel(),), (1,))
                    waiting.append((wires.receive(flat, backend.ranks[place], backward=True), place))
                    mine.append(whole)
            parts.append(mine)
        for work, place in waiting:
            wires.wait(work, backend.ranks[place])
        wires.wait_for_sends()
        for leaf, mine in zip(leaves, parts, strict=True):
            name = id(leaf)
            for number, part in enumerate(mine):  # `Loop` adds up what lies at places, in this order
                self.totals[name, f"{backend.own} {number}" if number else backend.own] = part
        found = super().gradients([one for one in leaves if not isinstance(one, ElsewhereTensor)])
        own = iter(found)
        return [None if isinstance(one, ElsewhereTensor) else next(own) for one in leaves]


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides without gaps: the tensor's own, if it has none."""
    return tuple(tensor.stride()) if _has_no_gaps(tensor.shape, tensor.stride()) else _in_rows(tensor.shape)


def _has_no_gaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _in_rows(shape: Sequence[int]) -> tuple[int, ...]:
    found, step = list[int](), 1
    for size in reversed(shape):
        found.insert(0, step)
        step *= size
    return tuple(found)


def _laid(one: Transfer) -> tuple[int, ...]:
    return one.stride if _has_no_gaps(one.shape, one.stride) else _in_rows(one.shape)


def _flat(value: torch.Tensor, one: Transfer) -> torch.Tensor:
    """A value as it travels: its memory in one row."""
    if tuple(value.shape) != one.shape or str(value.dtype) != f"torch.{one.dtype}":
        raise RankError(f"{one} would be {value.dtype} of shape {tuple(value.shape)}")
    strides, plain = _laid(one), value.detach().resolve_conj().resolve_neg()
    if plain.stride() != strides:
        plain = torch.empty_strided(one.shape, strides, dtype=value.dtype, device=value.device).copy_(plain)
    return plain.as_strided((plain.numel(),), (1,))


def _room(one: Transfer, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for a value, and the same in one row."""
    dtype: torch.dtype = getattr(torch, one.dtype)
    whole = torch.empty_strided(one.shape, _laid(one), dtype=dtype, device=device)
    return whole, whole.as_strided((whole.numel(),), (1,))


def _dense(total: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """A gradient as it travels, laid out as its leaf."""
    if total.layout != torch.strided:
        raise RankError(
            f"a sparse gradient of a weight of shape {tuple(leaf.shape)} would go to another rank: use "
            "sparse=False, or place the layers that read the weight together"
        )
    made = torch.empty_strided(leaf.shape, _strides(leaf), dtype=leaf.dtype, device=total.device)
    made.copy_(total)
    return made.as_strided((made.numel(),), (1,))
