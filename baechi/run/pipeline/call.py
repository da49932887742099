"""A call of a model whose step is split into microbatches.

    split the batch ─▶ a lane for each part ─▶ the list of tasks ─▶ results joined, gradients wait
                                                                    backward() hands them over

Where there is no loss to begin with, the call runs the forwards only, and `backward()` the backwards.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from baechi.backend.sends import wait_for_all_sends
from baechi.errors import UNSPLIT_CURE, UnsplittableCall
from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline, Task
from baechi.run.pipeline.batch.handed import unwritten_if_failed
from baechi.run.pipeline.batch.joining import loss_in, loss_name
from baechi.run.pipeline.batch.judge import Verdict
from baechi.run.pipeline.batch.results import Joiner, Joint, hand_in, share_at
from baechi.run.pipeline.batch.splitting import Parted, Unsplittable, joined_gradient, parted, rows_of
from baechi.run.pipeline.ending import Ending
from baechi.run.pipeline.executor import Executor, given_at
from baechi.run.pipeline.graph.gradients import Waiting, scaled
from baechi.run.pipeline.graph.handing_over import handed_over, without_gradient
from baechi.run.pipeline.graph.part import Exit
from baechi.run.pipeline.lanes.kept_apart import KeptApart
from baechi.run.pipeline.lanes.lane import CallerSettings, Lane
from baechi.run.pipeline.lanes.lane_step import LaneStep
from baechi.run.pipeline.lanes.own_state import OwnState
from baechi.run.pipeline.lanes.random_states import RandomStates
from baechi.run.pipeline.lanes.weights_elsewhere import WeightsElsewhere
from baechi.run.pipeline.microbatches import Microbatches
from baechi.run.pipeline.refusals import refuse_call, refuse_unsplittable
from baechi.run.pipeline.unsplit import runs_unsplit
from baechi.run.pipeline.walking import verdict_of, walk
from baechi.run.runtime import Runtime
from baechi.torchlib.streams import streams_now
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

logger = logging.getLogger(__name__)


def call_pipelined(
    model: nn.Module,
    runtime: Runtime,
    microbatches: Microbatches,
    whole: Callable[[], Any],
    inputs: Inputs,
) -> Any:
    """Call a model whose step is split into microbatches.

    Without gradients nothing needs microbatches: a call that cannot be split runs whole, which is said once.

    Args:
        model: the model.
        runtime: its runtime.
        microbatches: how its step is split.
        whole: calls the model in one step.
        inputs: what it is called with; `target` is for the loss, if it is computed here.

    Returns:
        What the model returns for the whole batch.

    Raises:
        ValueError: the batch cannot be split.
        BaechiError: it is called in a way that microbatches cannot follow; see `refusals`.
    """
    with microbatches.alone:
        if runs_unsplit(model):
            return whole()
        if torch.is_grad_enabled():
            refuse_call(model, inputs)
            return _in_parts(model, runtime, microbatches, inputs)
        kind = _kind(inputs)
        if kind in microbatches.writing:
            return whole()
        try:
            refuse_call(model, inputs)
            refuse_unsplittable(model, inputs, microbatches)
            return _in_parts(model, runtime, microbatches, inputs)
        except (UnsplittableCall, Unsplittable) as error:
            why = str(error).partition(f": {UNSPLIT_CURE}")[0]
            if isinstance(error, UnsplittableCall) and error.writes:
                microbatches.writing.add(kind)
                why = why.partition(". ")[0]
        _tell_unsplit(microbatches, why)
        return whole()


def _in_parts(model: nn.Module, runtime: Runtime, microbatches: Microbatches, inputs: Inputs) -> Any:
    pipeline = microbatches.pipeline_for(model, rows_of(model, inputs, microbatches.split))
    parts = parted(model, inputs, pipeline.microbatches, microbatches.split)
    microbatches.least_rows = max(microbatches.least_rows, min(parts.rows))
    verdict = verdict_of(model, runtime, microbatches, inputs, parts)
    runtime.forced, runtime.launched, runtime.full = [], [], []
    runtime.counts = {"microbatches": pipeline.microbatches}
    with runtime.backend.step() as runtime.measure, unwritten_if_failed(inputs):
        call = _Call(model, runtime, microbatches, pipeline, inputs, parts, verdict)
        return call.ending.after(call.run)


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


class _Call:
    """One call of a model.

    Args:
        model: the model.
        runtime: its runtime.
        microbatches: how its step is split.
        pipeline: the list of tasks for this batch.
        inputs: what the caller gave.
        parts: the same in parts.
        verdict: what the loss of each part counts, and how outputs are joined.

    Attributes:
        ending: ends what is run of it.
    """

    def __init__(
        self,
        model: nn.Module,
        runtime: Runtime,
        microbatches: Microbatches,
        pipeline: Pipeline,
        inputs: Inputs,
        parts: Parted,
        verdict: Verdict,
    ) -> None:
        self._split = microbatches.split
        self._runtime, self._backend = runtime, runtime.backend
        self._pipeline = pipeline
        self._parted, self._verdict = parts, verdict
        self._alone = microbatches.alone
        self._home = self._home_of(inputs)
        self._waiting = Waiting([weight for weight in model.parameters() if weight.requires_grad])
        self._goes_back = torch.is_grad_enabled() and model.training
        settings = CallerSettings()
        self._lanes = [Lane(self._backend, number, settings) for number in range(pipeline.microbatches)]
        route, number = microbatches.route, pipeline.microbatches
        own = OwnState(model, microbatches.written, number, route.run_of_layer)
        shared, draws = own.tensors, RandomStates(self._backend, own.generators, number)
        self._kept = KeptApart(own, draws, number)
        self.ending = Ending(self._backend, self._lanes, self._waiting, self._kept)
        self._weights = weights = WeightsElsewhere(
            model, route, self._backend, microbatches.ahead, shared.is_unwritten
        )
        steps = [
            LaneStep(self._backend, runtime, route, lane, microbatches.ahead, shared, weights)
            for lane in self._lanes
        ]
        self._parts = [step.parts for step in steps]
        self._executor = Executor(
            self._backend,
            pipeline,
            self._lanes,
            self._parts,
            self._kept,
            self._waiting,
            [part for _, _, parts in self._parted.leaves for part in parts],
            microbatches.seams,
        )
        self._returned: list[Exit] = []
        self._later: list[Task] = []
        self._seeded: dict[int, torch.Tensor] = {}
        self._codes = [
            partial(walk, model, runtime, microbatches.loss, step, part)
            for step, part in zip(steps, self._parted.parts, strict=True)
        ]

    def run(self) -> Any:
        """Run what the call has to run.

        Returns:
            What the model returns for the whole batch.
        """
        with self._adding(), self._kept.own.open(), self._going_back_in_parts():
            try:
                self._backend.spend("step", self._backend.host)
                self._backend.spend("waiting_gradient", self._backend.host, len(self._waiting.weights))
                self._backend.spend("microbatch", self._backend.host, len(self._lanes))
                for lane, code in zip(self._lanes, self._codes, strict=True):
                    lane.start(code)
                self._executor.run(self._tasks_now(), self._seed)
                self._executor.finish(list(self._seeded))
                if self._goes_back and self._verdict.found.writers is not None:
                    self._kept.own.tensors.refuse_others(self._verdict.found.writers)
            finally:  # what the model's code writes while it unwinds is put back, too
                self.ending.end_lanes()
        self._weights.leave()
        wait_for_all_sends(self._backend)
        result = self._result_with_loss() if self._seeded else self._result()
        self._kept.settle()
        return result

    def _adding(self) -> AbstractContextManager[None]:
        """Another thread may train the model while this one evaluates it: gradients are left alone then."""
        return self._waiting.adding() if torch.is_grad_enabled() else nullcontext()

    @contextmanager
    def _going_back_in_parts(self) -> Iterator[None]:
        """Within this context, what backward goes through is of lanes."""
        before, self._runtime.goes_back_in_parts = self._runtime.goes_back_in_parts, True
        try:
            yield
        finally:
            self._runtime.goes_back_in_parts = before

    def _home_of(self, inputs: Inputs) -> str | None:
        first = next(tensors_in(inputs.args, inputs.kwargs), None)
        if first is None or self._runtime.outputs_stay:
            return None
        return self._backend.place_of(first)

    def _tasks_now(self) -> Iterator[Task]:
        """The tasks of the call; those of backward wait for `backward()` if there is no loss."""
        for task in self._pipeline.order:
            if task.phase == "forward" or self._has_loss(task.microbatch):
                yield task
            elif torch.is_grad_enabled():
                self._later.append(task)

    def _has_loss(self, microbatch: int) -> bool:
        if microbatch in self._seeded:
            return True
        result = self._lanes[microbatch].result
        loss = loss_in(result) if self._goes_back else None
        return loss is not None and loss.requires_grad and self._verdict.is_number(loss_name(result), [loss])

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
        lane.result = map_tensors(lambda tensor: kept if tensor is loss else _ended(tensor), lane.result)

    def _root(self, microbatch: int, tensor: torch.Tensor) -> Exit:
        part, place = self._parts[microbatch].part_of(tensor), self._backend.place_of(tensor)
        if part is None:  # an input, returned as it is
            self._returned.append(Exit(get_gradient_edge(tensor), place))
            return self._returned[-1]
        return part.exit_of(tensor, place)

    # --- results

    def _joiner(self, root: Callable[[int, torch.Tensor], Any] | None) -> Joiner:
        dims = [dim for dim in self._split.values() if isinstance(dim, int)]
        rows, verdict = self._parted.rows, self._verdict
        return Joiner(self._backend, rows, verdict, [*dims, 0], self._home, root)

    def _taken(self) -> list[Any]:
        results = [lane.result for lane in self._lanes]
        for lane in self._lanes:
            lane.result = None
        return results

    def _result_with_loss(self) -> Any:
        """The loss of the batch, whose gradients wait; other outputs have no gradient any more."""
        results = self._taken()
        join = self._joiner(lambda number, tensor: None)
        whole = join(results)
        del results
        loss = loss_in(whole)
        given, grads = self._given(), self._gradients()
        known = [(one, grad) for one, grad in zip(given, grads, strict=True) if grad is not None]
        del given, grads
        assert loss is not None
        waiting = [grad for _, grad in known]
        streams = streams_now(map(self._backend.torch_device, self._backend.names))
        scaling = partial(scaled, self._backend, waiting, streams)
        (handed,) = handed_over([loss], [one for one, _ in known], scaling)
        made = {id(joint.value): without_gradient(joint.value) for joint in join.joints}
        made[id(loss)] = handed
        return map_tensors(lambda tensor: made.get(id(tensor), tensor), whole)

    def _result(self) -> Any:
        """The joined outputs; if they have gradients, `backward()` runs the rest of the list."""
        grad = torch.is_grad_enabled()
        self._executor.hand_over()
        join = self._joiner(self._root if grad else None)
        whole = join(self._taken())
        if not join.joints:
            return whole
        values = [joint.value for joint in join.joints]
        handed = handed_over(values, self._given(), partial(self._drained, join.joints))
        made = {id(value): new for value, new in zip(values, handed, strict=True)}
        return map_tensors(lambda tensor: made.get(id(tensor), tensor), whole)

    def _drained(
        self, joints: list[Joint], incoming: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Run the backwards of all microbatches, from the gradients of the joined outputs."""
        with torch.no_grad():
            for joint, grad in zip(joints, incoming, strict=True):
                if grad is not None:
                    hand_in(self._backend, joint, grad, self._parted.rows)
        joints.clear()
        with self._alone:
            self.ending.after(self._run_later)
        return self._gradients()

    def _run_later(self) -> None:
        """Run the backwards that waited for `backward()`."""
        with self._waiting.adding(), self._kept.own.open(), self._going_back_in_parts():
            self._executor.run(self._later, lambda microbatch: None)
            self._executor.finish(range(len(self._lanes)))
            edges, grads = given_at(self._backend, self._returned)
            if edges:
                torch.autograd.backward(edges, grads)

    def _given(self) -> list[torch.Tensor]:
        """What gets gradients: weights, then inputs."""
        return [*self._waiting.weights, *[leaf for leaf, _, _ in self._parted.leaves]]

    def _gradients(self) -> list[torch.Tensor | None]:
        """Their gradients."""
        of_inputs = [joined_gradient(self._backend, *leaf) for leaf in self._parted.leaves]
        return [*self._waiting.take(), *of_inputs]


def _ended(tensor: torch.Tensor) -> torch.Tensor:
    """An output of a microbatch that goes backward: it says why it has no gradient when that is asked for."""
    return without_gradient(tensor.detach()) if tensor.requires_grad else tensor
