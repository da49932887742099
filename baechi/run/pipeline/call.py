"""A step in microbatches, from the call to its gradients: the page to read first.

    the batch in parts      x ─▶ x0, x1                                                 `_in_parts`
    a lane for each         a thread walks x0 through the model's own code, run by run  `_Call`
    the list of tasks       forwards in lanes; backwards, one call of the engine each   `Executor.run`
    one result              y0, y1 ─▶ y; `backward()` hands over the gradients, which wait

    two layers on two devices, two microbatches; the model returns its loss

    cuda:0   F0  F1  ..  B0  ..  B1      time ─▶
    cuda:1   ..  F0  B0  F1  B1  ..

Where there is no loss to begin with, the call runs the forwards only, and `backward()` the backwards.
"""

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from threading import current_thread
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from baechi.backend.sends import wait_for_all_sends
from baechi.errors import UNSPLIT_CURE, UnsplittableCall
from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline, Task
from baechi.run.pipeline.batch.caller_objects import unwritten_if_failed
from baechi.run.pipeline.batch.cuts import Cuts, kind_of
from baechi.run.pipeline.batch.join import loss_in, loss_name
from baechi.run.pipeline.batch.partition import Unsplittable, joined_gradient, parted, rows_of
from baechi.run.pipeline.batch.results import Root, share_at
from baechi.run.pipeline.call_end import Ending
from baechi.run.pipeline.call_result import Batch, Returned, ended, no_root
from baechi.run.pipeline.executor import Executor, Microbatch, given_at
from baechi.run.pipeline.graph.gradients import Waiting
from baechi.run.pipeline.graph.part import Exit
from baechi.run.pipeline.lanes.kept_apart import KeptApart
from baechi.run.pipeline.lanes.lane import CallerSettings, Lane
from baechi.run.pipeline.lanes.lane_step import LaneStep
from baechi.run.pipeline.lanes.own_state import OwnState
from baechi.run.pipeline.lanes.random_states import random_states
from baechi.run.pipeline.lanes.weights_elsewhere import WeightsElsewhere
from baechi.run.pipeline.microbatches import Microbatches
from baechi.run.pipeline.refusals import refuse_call, refuse_unsplittable
from baechi.run.pipeline.unsplit import runs_unsplit
from baechi.run.pipeline.walk import verdict_of, walk
from baechi.run.runtime import Runtime
from baechi.run.step.call_sites import CallSites
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

logger = logging.getLogger(__name__)

_MOST_KINDS = 1000

Compiled = Callable[[nn.Module, Runtime, Microbatches, Pipeline, Batch], Callable[[], Any] | None]
"""From a call in microbatches, what runs it as programs; None if its code has to run as it is written."""


def call_pipelined(
    model: nn.Module,
    runtime: Runtime,
    microbatches: Microbatches,
    whole: Callable[[], Any],
    inputs: Inputs,
    compiled: Compiled | None = None,
) -> Any:
    """Call a model whose step is split into microbatches.

    Without gradients nothing needs microbatches: a call that cannot be split runs whole, which is said once.
    """
    with microbatches.alone:
        if runs_unsplit(model):
            return whole()
        if torch.is_grad_enabled():
            microbatches.trains = current_thread()
            refuse_call(model, inputs)
            return _in_parts(model, runtime, microbatches, inputs, compiled)
        kind = _kind(inputs)
        if kind in microbatches.writing:
            return whole()
        try:
            refuse_call(model, inputs)
            refuse_unsplittable(model, inputs, microbatches)
            return _in_parts(model, runtime, microbatches, inputs, compiled)
        except (UnsplittableCall, Unsplittable) as error:
            why = str(error).partition(f": {UNSPLIT_CURE}")[0]
            if isinstance(error, UnsplittableCall) and error.writes:
                microbatches.writing.add(kind)
                why = why.partition(". ")[0]
        _tell_unsplit(microbatches, why)
        return whole()


def _in_parts(
    model: nn.Module,
    runtime: Runtime,
    microbatches: Microbatches,
    inputs: Inputs,
    compiled: Compiled | None,
) -> Any:
    """Divide the batch, ask the judge what its parts count, and run them."""
    kind, split = kind_of(model, inputs), microbatches.split
    cuts = microbatches.cuts.get(kind)
    if cuts is not None:
        pipeline = microbatches.pipeline_for(model, sum(cuts.sizes))
        parts = cuts.parted(inputs, pipeline.microbatches)
    else:
        pipeline = microbatches.pipeline_for(model, rows_of(model, inputs, split))
        parts = parted(model, inputs, pipeline.microbatches, split)
        learned = None if kind is None else Cuts.learned(model, inputs, parts, split)
        if learned is not None and len(microbatches.cuts) < _MOST_KINDS:
            microbatches.cuts[kind] = learned
    microbatches.least_rows = max(microbatches.least_rows, min(parts.rows))
    verdict = verdict_of(model, runtime, microbatches, inputs, parts)
    runtime.forced, runtime.launched, runtime.full = [], [], []
    runtime.counts = {"microbatches": pipeline.microbatches}
    undone = nullcontext() if parts.is_plain else unwritten_if_failed(inputs)
    first = next(tensors_in(inputs.args, inputs.kwargs), None)
    with runtime.backend.step() as runtime.measure, undone:
        home = None if first is None or runtime.outputs_stay else runtime.backend.place_of(first)
        dims = [dim for dim in split.values() if isinstance(dim, int)]
        batch = Batch(parts, verdict, home, dims)
        programs = None if compiled is None else compiled(model, runtime, microbatches, pipeline, batch)
        if programs is not None:
            return programs()
        call = _Call(model, runtime, microbatches, pipeline, batch)
        return call.ending.after(call.run)


class _Call:
    """One call of a model.

    Args:
        model: the model.
        runtime: its runtime.
        microbatches: how its step is split.
        pipeline: the list of tasks for this batch.
        batch: the batch.

    Attributes:
        ending: ends what is run of it.
    """

    def __init__(
        self,
        model: nn.Module,
        runtime: Runtime,
        microbatches: Microbatches,
        pipeline: Pipeline,
        batch: Batch,
    ) -> None:
        self._runtime, self._backend, self._microbatches = runtime, runtime.backend, microbatches
        self._pipeline, self._batch = pipeline, batch
        self._parted, self._verdict = batch.parts, batch.verdict
        self._goes_back = torch.is_grad_enabled() and model.training
        weights = filter(attrgetter("requires_grad"), model.parameters())
        self._inputs: list[torch.Tensor] = []
        in_parts: list[torch.Tensor] = []
        for whole, _, each in batch.parts.leaves:
            self._inputs.append(whole)
            in_parts += each
        self._waiting = Waiting(weights, in_parts)
        settings, route, ahead = CallerSettings(), microbatches.route, microbatches.ahead
        own = OwnState(model, microbatches.written, pipeline.microbatches, route.run_of_layer)
        draws = random_states(self._backend, own.generators, pipeline.microbatches)
        self._kept = KeptApart(own, draws, pipeline.microbatches)
        self._weights = WeightsElsewhere(model, route, self._backend, ahead, own.tensors.is_unwritten)
        self._lanes: list[Lane] = []
        self._ran: list[Microbatch] = []
        self._codes: list[Callable[[], Any]] = []
        for number, part in enumerate(batch.parts.parts):
            lane = Lane(self._backend, number, settings)
            step = LaneStep(self._backend, runtime, route, lane, ahead, own.tensors, self._weights)
            step.sites = CallSites(runtime.moves) if runtime.moves else None
            self._lanes.append(lane)
            self._ran.append(Microbatch(lane, step.parts))
            self._codes.append(partial(walk, model, runtime, microbatches.loss, batch.parts, step, part))
        self._executor = Executor(
            self._backend, pipeline, self._ran, self._kept, self._waiting, microbatches.seams
        )
        self._returned: list[Exit] = []
        self._later: list[Task] = []
        self._seeded: dict[int, torch.Tensor] = {}
        self.ending = Ending(self._backend, self._lanes, self._waiting, self._kept)

    def run(self) -> Any:
        """Run what the call has to run."""
        # another thread may train the model while this one evaluates it: gradients are left alone then
        adding = self._waiting.adding() if torch.is_grad_enabled() else nullcontext()
        with adding, self._running():
            try:
                self._backend.spend("step", self._backend.host)
                self._backend.spend("waiting_gradient", self._backend.host, len(self._waiting.weights))
                self._backend.spend("microbatch", self._backend.host, len(self._lanes))
                for lane, code in zip(self._lanes, self._codes, strict=True):
                    lane.start(code)
                self._executor.run(self._tasks_now(), self._seeded, self._seed)
                shared, writers = self._kept.own.tensors, self._verdict.found.writers
                if self._goes_back and shared.written and writers is not None:
                    shared.refuse_others(writers)
            finally:  # what the model's code writes while it unwinds is put back, too
                for lane in self._lanes:
                    lane.end()
        self._weights.leave()
        wait_for_all_sends(self._backend)
        result = self._result()
        self._kept.settle()
        return result

    def _run_later(self) -> None:
        """Run the backwards that waited for `backward()`."""
        with self._waiting.adding(), self._running():
            self._executor.run(self._later, range(len(self._lanes)))
            edges, grads = given_at(self._backend, self._returned)
            if edges:
                torch.autograd.backward(edges, grads)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Within this context tasks may run, and what backward goes through is of lanes."""
        with self._kept.own.open():
            before, self._runtime.goes_back_in_parts = self._runtime.goes_back_in_parts, True
            try:
                yield
            finally:
                self._runtime.goes_back_in_parts = before

    def _tasks_now(self) -> Iterator[Task]:
        """The tasks of the call; those of backward wait for `backward()` if there is no loss."""
        for task in self._pipeline.order:
            runs = task.phase == "forward" or task.microbatch in self._seeded
            if not runs and self._goes_back:
                result = self._lanes[task.microbatch].result
                loss = loss_in(result)
                if loss is not None and loss.requires_grad:
                    runs = self._verdict.is_number(loss_name(result), [loss])
                del result, loss
            if runs:
                yield task
            elif torch.is_grad_enabled():
                self._later.append(task)

    def _seed(self, microbatch: int) -> None:
        """Let the backward of a microbatch begin: its loss counts as much as its share of the batch."""
        if microbatch in self._seeded:
            return
        lane = self._lanes[microbatch]
        loss = loss_in(lane.result)
        assert loss is not None
        place = self._backend.place_of(loss)
        shares = self._verdict.shares_of(loss_name(lane.result)) or self._verdict.others
        share = share_at(place, self._backend, shares[microbatch])
        with self._backend.at(place, ""), torch.no_grad():
            known = not isinstance(share, torch.Tensor)
            seed = torch.full_like(loss, share) if known else share.to(loss.dtype).expand_as(loss)
        self._root(microbatch, loss).incoming.append((seed, None))
        self._seeded[microbatch] = kept = loss.detach()
        lane.result = map_tensors(lambda tensor: kept if tensor is loss else ended(tensor), lane.result)

    def _root(self, microbatch: int, tensor: torch.Tensor) -> Exit:
        part, place = self._ran[microbatch].parts.part_of(tensor), self._backend.place_of(tensor)
        if part is None:  # an input, returned as it is
            self._returned.append(Exit(get_gradient_edge(tensor), place))
            return self._returned[-1]
        return part.exit_of(tensor, place)

    # --- results

    def _result(self) -> Any:
        """See `Returned.result`."""
        root: Root | None = self._root if torch.is_grad_enabled() else None
        if self._seeded:
            root = no_root
        else:
            self._executor.is_told = True
        results = []
        for lane in self._lanes:
            results.append(lane.result)
            lane.result = None
        made = Returned(self._backend, self._batch, self._leaves, self._gradients, self._drain)
        return made.result(results, root, seeded=bool(self._seeded))

    def _leaves(self) -> list[torch.Tensor]:
        return [*self._waiting.weights, *self._inputs]

    def _drain(self) -> None:
        with self._microbatches.alone:
            self.ending.after(self._run_later)

    def _gradients(self) -> list[torch.Tensor | None]:
        """Those of weights, then of inputs."""
        waiting = self._waiting
        grads, waiting.grads = waiting.grads, [None] * len(waiting.weights)
        for leaf in self._parted.leaves:
            grads.append(joined_gradient(self._backend, *leaf))
        return grads


def _kind(inputs: Inputs) -> Hashable:
    """What calls have in common, of which one was seen to write what it is given."""
    return tuple(map(type, inputs.args)), tuple(
        [(name, type(value)) for name, value in inputs.kwargs.items()]
    )


def _tell_unsplit(microbatches: Microbatches, why: str) -> None:
    """Say it loudly once."""
    level = logging.DEBUG if microbatches.tells_no_more else logging.WARNING
    microbatches.tells_no_more = True
    logger.log(
        level, "a call without gradients runs whole on the plan's devices, not in microbatches: %s", why
    )
