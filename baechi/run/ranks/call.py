"""A call of a model whose programs run over ranks: the page to read first.

bind       as in one process; plain tensors stand in for weights of other ranks      torchlib.elsewhere
schedule   once for each kind of call: programs and transfers, in one order          schedule
agree      every step: all ranks are given the same, and have the same order         agreement
loop       this rank's part of the order                                             loop
share      scalars go to all ranks; other outputs stay where they are                outputs
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from baechi.backend.ranks.devices import RankDevices
from baechi.backend.sends import wait_for_all_sends
from baechi.errors import CompileError
from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline
from baechi.run.pipeline.batch.join import loss_in
from baechi.run.pipeline.call_result import Batch, Returned, ended, no_root
from baechi.run.pipeline.graph.handing_over import handed_over
from baechi.run.pipeline.microbatches import Loss, Microbatches
from baechi.run.programs.averages import Averages
from baechi.run.programs.call import InParts, Whole, in_order, leaves_of
from baechi.run.programs.capture import CURE, Bound
from baechi.run.programs.kinds import kind_of_call
from baechi.run.programs.loop import Loop, Values
from baechi.run.ranks.agreement import agree
from baechi.run.ranks.first_replica import from_first_replica
from baechi.run.ranks.loop import RankLoop
from baechi.run.ranks.outputs import output_here, scalars_shared
from baechi.run.ranks.schedule import Schedule
from baechi.run.runtime import Runtime
from baechi.run.weights.match import weights_of
from baechi.torchlib.elsewhere import ElsewhereTensor
from baechi.torchlib.tensors.pytree import tensors_in

_OVER_RANKS = "over several ranks", "add up their losses, and run one"
_NO_LOSS = (
    "over ranks only scalars reach every rank, so a model in training has to return its loss: give "
    "distribute(..., loss=function) and call the model with target=, or return the loss from forward"
)


def call_whole_in_ranks(
    model: nn.Module,
    runtime: Runtime,
    loss: Loss | None,
    as_written: Callable[[], Any] | None,
    inputs: Inputs,
) -> Any:
    """Call a model in one step."""
    del as_written
    (bound,) = _bound(model, runtime, loss, [inputs], alike=False)
    runtime.forced, runtime.launched, runtime.full, runtime.counts = [], [], [], {}
    with runtime.backend.step() as runtime.measure:
        return _WholeInRanks(model, runtime, bound, inputs).run()


def call_in_ranks(
    model: nn.Module, runtime: Runtime, microbatches: Microbatches, pipeline: Pipeline, batch: Batch
) -> Callable[[], Any] | None:
    """What runs a call in microbatches."""
    parts = batch.parts
    bounds = _bound(model, runtime, microbatches.loss, parts.parts, alike=parts.is_plain)
    return _InRanks(model, runtime, microbatches, (pipeline, replace(batch, home=None)), bounds).run


def told_to_others(runtime: Runtime) -> AbstractContextManager[None]:
    """Within this context an error on one of several ranks ends all of them."""
    return runtime.backend.wires.guarded() if isinstance(runtime.backend, RankDevices) else nullcontext()


def _backend_of(runtime: Runtime) -> RankDevices:
    assert isinstance(runtime.backend, RankDevices)
    return runtime.backend


def _refuse_leaves(inputs: Inputs) -> None:
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors_in(inputs.args, inputs.kwargs)):
        raise CompileError(
            "an input of the model requires a gradient, and over ranks none comes back to it: detach it"
        )


def _bound(
    model: nn.Module, runtime: Runtime, loss: Loss | None, parts: Sequence[Inputs], *, alike: bool
) -> list[Bound]:
    """The graphs of calls, with the model's own weights among their inputs."""
    for part in parts[:1] if alike else parts:
        _refuse_leaves(part)
    captures = runtime.programs
    try:
        bounds = captures.bind(model, runtime, loss, parts, alike=alike)
        if bounds is None:
            raise CompileError(captures.why.get(kind_of_call(model, parts[0]), captures.last_told))
        assigned = [one.name for bound in bounds for one in bound.assigned]
        if assigned:
            raise CompileError(
                f"the code assigns the buffer {assigned[0]!r} anew: write it in place (`add_`, `copy_`)"
            )
        kept = [name or owner for bound in bounds for owner, name in bound.captured.kept]
        if kept:
            raise CompileError(
                f"the code keeps what it makes in {kept[0]}, which other ranks would not have: leave that "
                "out, or make it a buffer (register_buffer) that the code writes in place (`copy_`)"
            )
        compiler = captures.compiler(runtime)
        for bound in bounds:
            bound.captured.compiled(runtime, bound.flat, compiler)
    except CompileError as error:
        why = str(error).removesuffix(f". {CURE}")
        raise CompileError(
            f"over ranks a model runs as programs, and this call does not: {why}. Or use one process"
        ) from error
    made: dict[int, Bound] = {}
    for bound in bounds:
        known = None if bound.like is None else made[id(bound.like)]
        made[id(bound)] = bound.with_flat(runtime.stand_ins.weight, known)
    return list(made.values())


class _WholeInRanks(Whole):
    """One call in one step.

    Args:
        model: the model.
        runtime: its runtime.
        bound: its graph.
        inputs: what it is given.
    """

    def __init__(self, model: nn.Module, runtime: Runtime, bound: Bound, inputs: Inputs) -> None:
        super().__init__(runtime, bound, inputs)
        self._ranks, self._inputs = _backend_of(runtime), inputs
        self._tasks = [
            (0, self._compiled.cutting.position_of(task)) for task in self._compiled.cutting.units.tasks(1)
        ]
        self._schedules = partial(_scheduled, (runtime, model), [bound], [self.values])
        self._schedule = self._schedules((), [self._of(forward=True)])
        self._rank_loop = RankLoop(self._ranks, [self.values], (), self._schedule)
        self._trains = model.training and torch.is_grad_enabled()

    def run(self) -> Any:
        """Run forward; `backward()` of a scalar that it returns runs the backwards."""
        loop = self._rank_loop
        agree(self._runtime, self._schedule, 0, self._inputs)
        loop.act(self._schedule, 0)
        loop.write((), waits=True)
        wait_for_all_sends(self._ranks)
        from_first_replica(self._ranks, loop.written())
        self._runtime.counts["programs"] = loop.count
        if self._schedule.draws:
            loop.settle_state()
        scalars_shared(self._ranks, [self.values], self._schedule.scalars)
        numbers = range(len(self._bound.captured.tokens))
        outputs = [output_here(self._ranks, self.values, number) for number in numbers]
        scalars = [number for number in self._compiled.tangents if outputs[number].numel() == 1]
        if self._trains and self._compiled.tangents and not scalars:
            raise CompileError(_NO_LOSS)
        leaves = leaves_of([self.values])
        own = [one for one in leaves if not isinstance(one, ElsewhereTensor)]
        for number in self._compiled.tangents:
            if number not in scalars and not isinstance(outputs[number], ElsewhereTensor):
                outputs[number] = ended(outputs[number].detach().requires_grad_(), own)
        if scalars:
            go = partial(self._gone_back, scalars, leaves)
            handed = handed_over([outputs[number] for number in scalars], own, go, _OVER_RANKS)
            for number, value in zip(scalars, handed, strict=True):
                outputs[number] = value
        return self._bound.result(outputs, deep=True)

    def _of(self, *, forward: bool) -> list[tuple[int, int]]:
        return [task for task in self._tasks if self._compiled.cutting.is_forward(task[1]) == forward]

    def _gone_back(
        self,
        numbers: Sequence[int],
        leaves: Sequence[torch.Tensor],
        incoming: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor | None]:
        loop, values = self._rank_loop, self.values
        with self._ranks.wires.guarded():
            loop.check_unchanged()
            given: dict[int, torch.Tensor | None] = {}
            for number, grad in zip(numbers, incoming, strict=True):
                if grad is not None:
                    here = self._compiled.tangent_place[number] in (self._ranks.own, self._ranks.host)
                    given[number] = values.tangent(self._ranks, number, grad) if here else None
            _gone_back(values, given)
            both = [self._of(forward=True), self._of(forward=False)]
            schedule = self._schedules((frozenset(given),), both)
            agree(self._runtime, schedule, 1)
            loop.act(schedule, 1)
            wait_for_all_sends(self._ranks)
            averages = Averages(self._ranks)
            averages.begin(leaves, loop.totals, schedule.places_of)
            found = averages.finish(leaves, loop.gradients(leaves))
            schedule.note_gradients(leaves)
        return [
            grad for leaf, grad in zip(leaves, found, strict=True) if not isinstance(leaf, ElsewhereTensor)
        ]


class _InRanks(InParts):
    """One call in microbatches; see `InParts`."""

    def __init__(
        self,
        model: nn.Module,
        runtime: Runtime,
        microbatches: Microbatches,
        asked: tuple[Pipeline, Batch],
        bounds: Sequence[Bound],
    ) -> None:
        super().__init__(model, runtime, microbatches, asked, bounds)
        self._inputs = [part for one in self._batch.parts.parts for part in (*one.args, one.kwargs)]
        self._all_weights, self._weights = self._weights, self._schedule.leaves_here(self._weights)

    def _made_loop(self) -> Loop:
        self._ranks, model = _backend_of(self._runtime), self._model
        if model.training and torch.is_grad_enabled() and not self._losses:
            raise CompileError(_NO_LOSS)
        for values, number in zip(self.values, self._losses, strict=False):
            values.backward = values.compiled.programs(frozenset([number]), forward=False)
        kind = id(self._pipeline), tuple(self._losses)
        self._schedule = _scheduled((self._runtime, model), self._bounds, self.values, kind, [self._now()])
        self._rank_loop = RankLoop(self._ranks, self.values, self._draws, self._schedule)
        return self._rank_loop

    def run(self) -> Any:
        """Run what the call has to run."""
        loop = self._rank_loop
        agree(self._runtime, self._schedule, 0, Inputs(*self._inputs))
        loop.act(self._schedule, 0, self._seed_here)
        if self._losses:
            self._averages.begin(self._weights, loop.totals, self._schedule.places_of)
        loop.write((), waits=not self._losses)
        wait_for_all_sends(self._ranks)
        from_first_replica(self._ranks, loop.written())
        self._runtime.counts["programs"] = loop.count
        for states in self._draws:
            if self._schedule.draws:
                states.move()
        scalars_shared(self._ranks, self.values, self._schedule.scalars)
        results = list(map(self._result_of, range(len(self.values))))
        root = no_root if self._losses else None
        own = [one for one in self._weights if not isinstance(one, ElsewhereTensor)]
        made = Returned(self._ranks, self._batch, lambda: own, self._gradients, self._drain)
        result = made.result(results, root, seeded=bool(self._losses))
        if self._losses:
            loss = loss_in(result)
            assert loss is not None
            # not of `self`: the caller keeps the loss, and the values of the step may go
            loss.register_hook(partial(_noted, self._schedule, self._all_weights))
        return result

    def _now(self) -> Iterator[tuple[int, int]]:
        for is_forward, microbatch, position in in_order(self._pipeline.order, self.values):
            if is_forward or self._losses:
                yield microbatch, position

    def _seed_here(self, microbatch: int) -> None:
        number = self._losses[microbatch]
        values = self.values[microbatch]
        if values.compiled.tangent_place[number] in (self._ranks.own, self._ranks.host):
            self._seed(microbatch)
        else:
            _gone_back(values, {number: None})

    def _result_of(self, microbatch: int) -> Any:
        values, bound = self.values[microbatch], self._bounds[microbatch]
        outputs = []
        for number in range(len(bound.captured.tokens)):
            value = output_here(self._ranks, values, number)
            ends = self._losses and number in values.compiled.tangents
            if ends and number != self._losses[microbatch] and not isinstance(value, ElsewhereTensor):
                value = ended(value.detach().requires_grad_())
            outputs.append(value)
        return bound.result(outputs, deep=False)

    def _gradients(self) -> list[torch.Tensor | None]:
        found = self._averages.finish(self._weights, self._rank_loop.gradients(self._weights))
        pairs = zip(self._weights, found, strict=True)
        return [grad for leaf, grad in pairs if not isinstance(leaf, ElsewhereTensor)]


def _scheduled(
    of: tuple[Runtime, nn.Module],
    bounds: Sequence[Bound],
    values: Sequence[Values],
    kind: tuple[Hashable, ...],
    phases: Sequence[Iterable[tuple[int, int]]],
) -> Schedule:
    """What all ranks do in a kind of call; it is made once."""
    runtime, model = of
    own = [
        tuple([id(one) for number, one in enumerate(each.flat) if number not in each.captured.given])
        for each in bounds
        if each.like is None
    ]
    key = kind, tuple([id(one.compiled) for one in values]), tuple(own)
    found = runtime.schedules.get(key)
    if found is None:
        weights = frozenset(map(id, weights_of(model).values()))
        found = runtime.schedules[key] = Schedule(_backend_of(runtime), runtime.plan, values, weights)
        for phase in phases:
            found.extend(phase)
        found.let_go()
    return found


def _gone_back(values: Values, tangents: Mapping[int, torch.Tensor | None]) -> None:
    """From now on microbatches go backward; gradients of outputs that lie on other ranks are None."""
    values.go_back(cast(dict[int, torch.Tensor], tangents))
    for number, grad in tangents.items():
        if grad is None:
            del values.by_slot[values.compiled.tangents[number]]


def _noted(schedule: Schedule, leaves: Sequence[torch.Tensor], grad: torch.Tensor) -> None:
    schedule.note_gradients(leaves)
