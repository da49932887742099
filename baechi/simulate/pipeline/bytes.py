"""What the runs and stages of a pipeline take of memory: one microbatch's step, counted as any step's.

The ledgers of `simulate.memory` go through the code of one microbatch, then backward stage by stage. What
they count in a task is what that task takes for every microbatch, whatever runs between:

    weights, optimizer state     always
    gradients of weights         from a stage's first backward on: they wait until `backward()`
    gradients that a stage gets  until its backward is over: autograd's engine holds what it begins with
    gradients that it sends      leave when its backward is over
    copies and outputs           as in any step: until the code's last reader, or the backward that needs them

What another stream has used comes back late: see `memory`.
"""

from collections.abc import Sequence
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
from baechi.simulate.memory.watching import stepping_bytes
from baechi.simulate.time.host import Issued
from baechi.simulate.time.transfers import RETURNED, Transfer, backward_transfers, forward_transfers


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


@dataclass(frozen=True)
class UnitBytes:
    """Bytes by device, by run and by stage.

    Args:
        always: by device, what is there all the time.
        stepping: by device, what is there while the optimizer steps.
        forward: by run.
        backward: by stage.
        first_backward: the same for the first microbatch, whose gradients of weights are new.
        gradients: by stage, what its first backward leaves.
        returned: by device, `(bytes, of which are kept)` that a microbatch returns: they stay until all are
            joined.
    """

    always: list[int]
    stepping: list[int]
    forward: list[Changes]
    backward: list[Changes]
    first_backward: list[Changes]
    gradients: list[int]
    returned: list[tuple[int, int]]


def bytes_of(plan: IndexedPlan, units: Units, run_of: Sequence[int]) -> UnitBytes:
    """Count the bytes of one microbatch.

    Args:
        plan: the placement, indexed.
        units: its stages and runs.
        run_of: by layer, its run; below 0 on the host.
    """
    always, gradients = [0] * len(plan.cluster), [0] * len(units.device_of)
    for layer, part in enumerate(plan.footprints):
        always[plan.device_of[layer]] += part.always_bytes
        if run_of[layer] >= 0 and plan.graph.training:
            gradients[units.stage_of_run[run_of[layer]]] += _new_gradient(plan.indexed.costs[layer])
    returned, kept = [0] * len(plan.cluster), [0] * len(plan.cluster)
    for one in plan.indexed.returned:
        returned[plan.device_of[one.maker]] += one.size_bytes
    for layer, costs in enumerate(plan.indexed.costs):
        kept[plan.device_of[layer]] += _stays(costs, plan.graph.training)
    notes = _Rehearsal(plan, units, run_of).notes
    first = [notes.changes(("backward", stage), new=True) for stage in range(len(units.device_of))]
    return UnitBytes(
        always,
        stepping_bytes(plan),
        [notes.changes(("forward", run)) for run in range(len(units.stage_of_run))],
        [notes.changes(("backward", stage)) for stage in range(len(units.device_of))],
        first,
        gradients,
        list(zip(returned, kept, strict=True)),
    )


def _new_gradient(costs: LayerCosts) -> int:
    coming = costs.backward_grad_bytes
    return ceil(costs.grad_bytes if coming is None else coming)


def _stays(costs: LayerCosts, training: bool) -> int:
    """What is still there of what a layer makes and the model returns, when a microbatch is over."""
    if not costs.returned:
        return 0
    return ceil(costs.held_bytes) + (saved_returned_bytes(costs) if training else 0)


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
        kept = parts[layer].gradient_bytes - (0 if accumulate else _new_gradient(costs))
        if fetched and costs.returned:
            kept += _stays(costs, plan.graph.training)
            lent[layer] = max(0, lent[layer] - saved_returned_bytes(costs))
        parts[layer] = parts[layer]._replace(gradient_bytes=kept)
    indexed = replace(plan.indexed, outputs_stay=True)
    return replace(plan, indexed=indexed, footprints=parts, lent_bytes=lent, place=range(len(parts)))


class _Rehearsal:
    """One microbatch's step, task by task."""

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
            back = backward_transfers(indexed, forward, device_of, self._places, host)
            self._go_backward(ledger, [one for one in back if one.travels])

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

    def _go_backward(self, forward: ForwardLedger, transfers: list[Transfer]) -> None:
        issued, times = self._issued(transfers), _AtOnce.of(len(self._places), len(transfers))
        ledger = BackwardLedger(self._plan, self.notes, forward.kept, transfers, issued, times, 0.0)
        ways = {(one.tensor, one.source): number for number, one in enumerate(transfers)}
        for stage in self._units.backward_order:
            self.notes.task = ("backward", stage)
            layers = sorted([layer for run in self._units.runs_of[stage] for layer in self._layers_of[run]])
            self._go_back(ledger, ways, stage, layers)

    def _go_back(
        self, ledger: BackwardLedger, ways: dict[tuple[int, int], int], stage: int, layers: Sequence[int]
    ) -> None:
        indexed, device, inside = self._plan.indexed, self._units.device_of[stage], set(layers)
        made = [tensor for layer in layers for tensor in indexed.makes[layer]]
        for number, returned in enumerate(indexed.returned):
            if returned.is_loss and returned.maker in inside:
                ledger.begin(number)
                made.append(RETURNED - number)
        held = [gradient for gradient in [ledger.hold(one, device) for one in made] if gradient is not None]
        for layer in reversed(layers):
            ledger.launch(layer)
            self.notes.note(device, _new_gradient(indexed.costs[layer]), _NEW)
        for tensor in sorted({tensor for layer in layers for tensor in indexed.reads[layer]}):
            maker = indexed.source[tensor]
            way = ways.get((tensor, device))
            if maker != FROM_HOST and way is not None and not inside.isdisjoint(indexed.graded[tensor]):
                ledger.send(way)
                ledger.receive(way)
        for gradient in held:
            ledger.let_go(gradient, device)
