"""One microbatch's step through a pipeline, task by task: the bytes that each task takes and gives back."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from baechi.cost.clock import COMPUTE, Job
from baechi.cost.indexed_graph import FROM_HOST
from baechi.cost.memory import saved_returned_bytes
from baechi.records.layer_costs import LayerCosts
from baechi.records.pipeline import Units
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.memory.backward import BackwardLedger
from baechi.simulate.memory.forward import ForwardLedger
from baechi.simulate.memory.gradients import Gradient
from baechi.simulate.pipeline.counting.apart import Apart, new_gradient_bytes
from baechi.simulate.pipeline.counting.notes import KERNEL_S, NEW, TRANSFER_S, Notes
from baechi.simulate.time.issue import Times
from baechi.simulate.time.transfers import RETURNED, Transfer, forward_transfers


def staying_bytes(costs: LayerCosts) -> int:
    """What is still there of what a layer makes and the model returns, after a microbatch's backward."""
    return ceil(costs.held_bytes) + saved_returned_bytes(costs) if costs.returned else 0


def _at_once(layers: int, transfers: int) -> Times:
    """Everything is issued at once; kernels are over before transfers."""
    work, move = Job(0, COMPUTE, KERNEL_S), Job(0, 0, 0)
    work.end_s, move.end_s = KERNEL_S, TRANSFER_S
    works, moves = dict.fromkeys(range(layers), work), dict.fromkeys(range(transfers), move)
    return Times([(0.0, 0.0)] * layers, [0.0] * transfers, works, moves)


def _as_a_lane(plan: IndexedPlan) -> IndexedPlan:
    """The plan as one microbatch sees it: outputs stay, and gradients of weights are counted apart."""
    fetched, accumulate = not plan.graph.outputs_stay, plan.graph.graph.get("accumulate")
    parts, lent = list(plan.footprints), list(plan.lent_bytes)
    for layer, costs in enumerate(plan.indexed.costs if plan.graph.training else ()):
        there = ceil(costs.grad_bytes) if accumulate else 0
        kept = parts[layer].gradient_bytes + there - new_gradient_bytes(costs)
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
        weights_part: by layer, the part of its backward that is for its weights alone, if that is apart.

    Attributes:
        notes: what it counted.
    """

    def __init__(
        self, plan: IndexedPlan, units: Units, run_of: Sequence[int], weights_part: Sequence[float]
    ) -> None:
        self._weights_part = weights_part
        self._places = range(len(run_of))
        self._plan = _as_a_lane(plan)
        self._units, self._run_of = units, run_of
        self._layers_of: list[list[int]] = [[] for _ in units.stage_of_run]
        for layer, run in enumerate(run_of):
            if run >= 0:
                self._layers_of[run].append(layer)
        self.notes = Notes()
        indexed, device_of, host = plan.indexed, plan.device_of, plan.host
        forward = forward_transfers(indexed, device_of, self._places, host)
        ledger = self._go_forward([one for one in forward if one.travels])
        if plan.graph.training:
            self._go_backward(ledger)

    def _go_forward(self, transfers: list[Transfer]) -> ForwardLedger:
        times = _at_once(len(self._places), len(transfers))
        ledger = ForwardLedger(self._plan, self.notes, transfers, times)
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
        whole = self._units.backward_order[: self._units.whole]
        handed = {stage: list(self._handed(stage)) for stage in whole}
        transfers = [one for of_stage in handed.values() for one in of_stage]
        times = _at_once(len(self._places), len(transfers))
        ledger = BackwardLedger(
            self._plan, self.notes, forward.kept, transfers, times, 0.0, self.notes.release
        )
        waiting: dict[int, list[tuple[int, Gradient]]] = {}
        number = 0
        for stage, of_stage in handed.items():
            self.notes.task = self.notes.releasing = ("backward", stage)
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
        weights = self._units.weights_stage.get(stage)
        apart = None if weights is None else Apart(self.notes, ledger, device, weights)
        for layer in reversed(layers):
            costs, is_apart = indexed.costs[layer], bool(apart and self._weights_part[layer])
            if apart is not None and is_apart:
                apart.catch(costs, indexed.makes[layer])
            ledger.launch(layer)
            if not is_apart:
                self.notes.note(device, new_gradient_bytes(costs), NEW)
        for kept in held:
            if kept is not None:
                ledger.let_go(kept, device)
        if apart is not None:
            apart.finish()


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
