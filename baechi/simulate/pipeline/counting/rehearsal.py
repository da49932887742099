"""One microbatch's step through a pipeline, task by task: the bytes that each task takes and gives back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from baechi.cost.indexed import FROM_HOST
from baechi.cost.memory import saved_returned_bytes
from baechi.records.layer_costs import LayerCosts
from baechi.records.pipeline import Units
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.memory.backward import BackwardLedger
from baechi.simulate.memory.forward import ForwardLedger
from baechi.simulate.memory.gradients import Gradient
from baechi.simulate.time.host import Issued
from baechi.simulate.time.transfers import RETURNED, Transfer, forward_transfers


class Change(NamedTuple):
    """What a task changes on a device.

    Args:
        device: the device.
        rise_bytes: the most that is there beyond what was there.
        net_bytes: what it adds in all, before what comes back late.
        late_bytes: what it releases that its own kernels still use.
        sent_bytes: what it releases that is still on its way, behind its kernels.
    """

    device: int
    rise_bytes: int
    net_bytes: int
    late_bytes: int
    sent_bytes: int


Changes = tuple[Change, ...]


def new_gradient_bytes(costs: LayerCosts) -> int:
    """Gradients of weights that a layer's backward makes first.

    Args:
        costs: the layer's attributes.
    """
    coming = costs.backward_grad_bytes
    return ceil(costs.grad_bytes if coming is None else coming)


def staying_bytes(costs: LayerCosts) -> int:
    """What is still there of what a layer makes and the model returns, when a microbatch's backward is over.

    Args:
        costs: the layer's attributes.
    """
    return ceil(costs.held_bytes) + saved_returned_bytes(costs) if costs.returned else 0


_NOW, _NEW, _LATE, _SENT = range(4)
"""What changes at once; a weight's gradient, if it is new; what a task's kernels still use; what is sent."""

_KERNEL_S, _TRANSFER_S = 1.0, 2.0
"""In a rehearsal everything is issued at 0; kernels are over at the one, transfers at the other."""


class _Notes:
    """Notes what ledgers count, by task."""

    def __init__(self) -> None:
        self.task = ("forward", 0)
        self._found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}

    def issue(self, device: int, size_bytes: int, now_s: float, least_s: float | None = None) -> None:
        self.note(device, size_bytes, _NOW)

    def free(self, device: int, size_bytes: int) -> None:
        self.note(device, -size_bytes, _NOW)

    def drop(self, device: int, size_bytes: int, until_s: float, now_s: float) -> None:
        kind = _SENT if until_s >= _TRANSFER_S else _LATE if until_s > now_s else _NOW
        self.note(device, -size_bytes, kind)

    def note(self, device: int, size_bytes: int, kind: int) -> None:
        if size_bytes:
            self._found.setdefault(self.task, []).append((device, size_bytes, kind))

    def left(self, device: int) -> int:
        """The bytes that no task has released."""
        return sum(
            [size_bytes for found in self._found.values() for one, size_bytes, _ in found if one == device]
        )

    def changes(self, task: tuple[str, int], *, new: bool = False) -> Changes:
        found: dict[int, list[int]] = {}
        for device, size_bytes, kind in self._found.get(task, ()):
            sums = found.setdefault(device, [0, 0, 0, 0])
            if kind in (_LATE, _SENT):
                sums[kind] -= size_bytes
            elif new or kind == _NOW:
                sums[1] += size_bytes
                sums[0] = max(sums[:2])
        return tuple([Change(device, *found[device]) for device in sorted(found)])


@dataclass(frozen=True)
class _AtOnce:
    """When layers and transfers ran."""

    ran: list[tuple[int, float, float]]
    moved: list[tuple[int, float, float]]

    @classmethod
    def of(cls, layers: int, transfers: int) -> "_AtOnce":
        ran = [(layer, 0.0, _KERNEL_S) for layer in range(layers)]
        return cls(ran, [(number, 0.0, _TRANSFER_S) for number in range(transfers)])


def _as_a_lane(plan: IndexedPlan) -> IndexedPlan:
    """The plan as one microbatch sees it: outputs stay, and gradients of weights are counted apart."""
    fetched, accumulate = not plan.graph.outputs_stay, plan.graph.graph.get("accumulate")
    parts, lent = list(plan.footprints), list(plan.lent_bytes)
    for layer, costs in enumerate(plan.indexed.costs if plan.graph.training else ()):
        kept = parts[layer].gradient_bytes - (0 if accumulate else new_gradient_bytes(costs))
        if fetched and costs.returned:
            kept += staying_bytes(costs)
            lent[layer] = max(0, lent[layer] - saved_returned_bytes(costs))
        parts[layer] = parts[layer]._replace(gradient_bytes=kept)
    indexed = replace(plan.indexed, outputs_stay=True)
    return replace(plan, indexed=indexed, footprints=parts, lent_bytes=lent, place=range(len(parts)))


class Rehearsal:
    """One microbatch's step, task by task.

    Args:
        plan: the placement, indexed.
        units: its stages and runs.
        run_of: by layer, its run; below 0 on the host.

    Attributes:
        notes: what it counted.
    """

    def __init__(self, plan: IndexedPlan, units: Units, run_of: Sequence[int]) -> None:
        self._places = range(len(run_of))
        self._plan = _as_a_lane(plan)
        self._units, self._run_of = units, run_of
        self._layers_of: list[list[int]] = [[] for _ in units.stage_of_run]
        for layer, run in enumerate(run_of):
            if run >= 0:
                self._layers_of[run].append(layer)
        self.notes = _Notes()
        indexed, device_of, host = plan.indexed, plan.device_of, plan.host
        forward = forward_transfers(indexed, device_of, self._places, host)
        ledger = self._go_forward([one for one in forward if one.travels])
        if plan.graph.training:
            self._go_backward(ledger)

    def _issued(self, transfers: Sequence[Transfer]) -> Issued:
        return Issued([(0.0, 0.0) for _ in self._places], [0.0] * len(transfers), [])

    def _go_forward(self, transfers: list[Transfer]) -> ForwardLedger:
        issued, times = self._issued(transfers), _AtOnce.of(len(self._places), len(transfers))
        ledger = ForwardLedger(self._plan, self.notes, transfers, issued, times)
        uploads: dict[int, list[int]] = {}
        sends: dict[int, list[int]] = {}
        for number, transfer in enumerate(transfers):
            if transfer.producers:
                sends.setdefault(transfer.producers[0], []).append(number)
            else:
                uploads.setdefault(min(transfer.consumers), []).append(number)
        for layer in self._places:
            ledger.come_to(layer)
            if self._run_of[layer] >= 0:
                self.notes.task = ("forward", self._run_of[layer])
            for number in uploads.get(layer, ()):
                ledger.depart(number)
            ledger.launch(layer)
            for number in sends.get(layer, ()):
                ledger.depart(number)
        ledger.come_to(len(self._places))
        ledger.finish(0.0)
        return ledger

    def _go_backward(self, forward: ForwardLedger) -> None:
        handed = {stage: list(self._handed(stage)) for stage in self._units.backward_order}
        transfers = [one for of_stage in handed.values() for one in of_stage]
        issued, times = self._issued(transfers), _AtOnce.of(len(self._places), len(transfers))
        ledger = BackwardLedger(self._plan, self.notes, forward.kept, transfers, issued, times, 0.0)
        waiting: dict[int, list[tuple[int, Gradient]]] = {}
        number = 0
        for stage, of_stage in handed.items():
            self.notes.task = ("backward", stage)
            self._go_back(ledger, waiting.pop(stage, []), stage)
            for transfer in of_stage:
                gradient = _handed_on(ledger, number, transfer)
                number += 1
                if gradient is not None:
                    home = self._units.stage_of_run[self._run_of[transfer.consumers[0]]]
                    waiting.setdefault(home, []).append((transfer.tensor, gradient))

    def _layers(self, stage: int) -> list[int]:
        return sorted([layer for run in self._units.runs_of[stage] for layer in self._layers_of[run]])

    def _handed(self, stage: int) -> Iterator[Transfer]:
        """The gradients that a stage hands on to those that made its inputs: one for each tensor."""
        indexed, layers = self._plan.indexed, self._layers(stage)
        for tensor in sorted({tensor for layer in layers for tensor in indexed.reads[layer]}):
            maker = indexed.source[tensor]
            readers = tuple(sorted(set(layers).intersection(indexed.graded[tensor])))
            if maker != FROM_HOST and maker not in layers and readers:
                size_bytes, home = indexed.size_bytes[tensor], self._plan.device_of[maker]
                here = self._units.device_of[stage]
                yield Transfer(tensor, size_bytes, size_bytes, here, home, readers, (maker,))

    def _go_back(
        self,
        ledger: BackwardLedger,
        given: Sequence[tuple[int, Gradient]],
        stage: int,
    ) -> None:
        """A stage's backward, which holds the gradients that it begins with."""
        indexed, device, layers = self._plan.indexed, self._units.device_of[stage], self._layers(stage)
        held: list[Gradient | None] = []
        for tensor, gradient in given:
            ledger.put_in(tensor, device, gradient)
            held.append(gradient)
        for number, returned in enumerate(indexed.returned):
            if returned.is_loss and returned.maker in layers:
                ledger.begin(number)
                of_loss = (RETURNED - number, *indexed.makes[returned.maker])
                held += [ledger.hold(tensor, device) for tensor in of_loss]
        for layer in reversed(layers):
            ledger.launch(layer)
            self.notes.note(device, new_gradient_bytes(indexed.costs[layer]), _NEW)
        for kept in held:
            if kept is not None:
                ledger.let_go(kept, device)


def _handed_on(ledger: BackwardLedger, number: int, transfer: Transfer) -> Gradient | None:
    """A gradient on its way to the stage that made the tensor; it waits there."""
    if transfer.travels:
        ledger.send(number)
        gradient: Gradient | None = ledger.leave(number)
    else:
        gradient = ledger.take_out(transfer.tensor, transfer.source)
    if gradient is not None:
        gradient.holders += 1
    return gradient
