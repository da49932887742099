"""A call of a model that runs as programs: the page to read first.

bind       guards are asked, and give the graph's inputs      capture
stage      once: the graph with its backward, cut by runs     joint, cutting, program
loop       programs run in the order of the pipeline's tasks  loop
hand over  `backward()` gives the gradients to autograd       pipeline.returned, graph.handing_over
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from baechi.backend import AbstractBackend
from baechi.backend.sends import wait_for_all_sends
from baechi.backend.transfer import transfer
from baechi.errors import CompileError
from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline, Task
from baechi.run.pipeline.batch.join import loss_in, loss_name
from baechi.run.pipeline.batch.partition import joined_gradient
from baechi.run.pipeline.batch.results import Root, share_at
from baechi.run.pipeline.call_result import Batch, Returned, no_root
from baechi.run.pipeline.graph.handing_over import handed_over, without_gradient
from baechi.run.pipeline.lanes.random_states import random_states
from baechi.run.pipeline.microbatches import Loss, Microbatches
from baechi.run.programs.averages import Averages
from baechi.run.programs.capture import Bound
from baechi.run.programs.kinds import kind_of_call
from baechi.run.programs.loop import Loop, Values
from baechi.run.programs.program import Compiled
from baechi.run.runtime import Runtime
from baechi.torchlib.tensors.pytree import tensors_in

_AS_PROGRAMS = "as programs", "distribute the model without compile="


def call_whole(
    model: nn.Module, runtime: Runtime, loss: Loss | None, as_written: Callable[[], Any], inputs: Inputs
) -> Any:
    """Call a model in one step."""
    bounds = runtime.programs.bind(model, runtime, loss, [inputs], alike=False)
    if bounds is None:
        return as_written()
    backend = runtime.backend
    try:
        whole = Whole(runtime, bounds[0], inputs)
    except CompileError as error:
        runtime.programs.refuse(kind_of_call(model, inputs), error)
        return as_written()
    runtime.forced, runtime.launched, runtime.full, runtime.counts = [], [], [], {}
    with backend.step() as runtime.measure:
        backend.spend("step", backend.host)
        return whole.run()


class Whole:
    def __init__(self, runtime: Runtime, bound: Bound, inputs: Inputs) -> None:
        self._runtime, self._backend, self._bound = runtime, runtime.backend, bound
        self._compiler = runtime.programs.compiler(runtime)
        self._compiled = bound.captured.compiled(runtime, bound.flat, self._compiler)
        given = frozenset(self._compiled.tangents)
        self._values = Values(self._compiled, bound.flat, given)
        self._loop = Loop(self._backend, [self._values])
        first = next(tensors_in(inputs.args, inputs.kwargs), None)
        stays = first is None or runtime.outputs_stay
        self._home = None if stays or first is None else self._backend.place_of(first)

    def run(self) -> Any:
        """Run forward; `backward()` of what it returns runs the backwards."""
        cutting, units = self._compiled.cutting, self._compiled.cutting.units
        tasks = [(0, cutting.position_of(task)) for task in units.tasks(1)]
        forward = [task for task in tasks if cutting.is_forward(task[1])]
        backward = [task for task in tasks if not cutting.is_forward(task[1])]
        self._loop.run(forward)
        _write(self._loop, self._bound, self._values, self._backend, waits=True)
        self._runtime.counts["programs"] = self._loop.count
        outputs = list(map(self._output, range(len(self._bound.captured.tokens))))
        wait_for_all_sends(self._backend)
        numbers = list(self._compiled.tangents)
        if numbers:
            leaves = leaves_of([self._values])
            go = partial(self._go_back, numbers, leaves, backward)
            handed = handed_over([outputs[number] for number in numbers], leaves, go, _AS_PROGRAMS)
            for number, value in zip(numbers, handed, strict=True):
                outputs[number] = value
        self._bound.keep(outputs)
        return self._bound.result(outputs, deep=True)

    @property
    def values(self) -> Values:
        """The values of its programs."""
        return self._values

    def _output(self, number: int) -> torch.Tensor:
        value: torch.Tensor = self._values.output(number)
        if self._home is None or self._backend.place_of(value) == self._home:
            return value
        return transfer(value, self._backend, self._home)

    def _go_back(
        self,
        numbers: Sequence[int],
        leaves: Sequence[torch.Tensor],
        tasks: Sequence[tuple[int, int]],
        incoming: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor | None]:
        self._loop.check_unchanged()
        given = {}
        for number, grad in zip(numbers, incoming, strict=True):
            if grad is not None:
                given[number] = self._values.tangent(self._backend, number, grad)
        self._values.go_back(given)
        self._loop.run(tasks)
        wait_for_all_sends(self._backend)
        self._bound.captured.tell(self._compiler)
        averages = Averages(self._backend)
        averages.begin(leaves, self._loop.totals, self._loop.places_of)
        return averages.finish(leaves, self._loop.gradients(leaves))


def call_in_parts(
    model: nn.Module, runtime: Runtime, microbatches: Microbatches, pipeline: Pipeline, batch: Batch
) -> Callable[[], Any] | None:
    """What runs a call in microbatches as programs; None if it has to run as the code is written."""
    parts = batch.parts
    bounds = runtime.programs.bind(model, runtime, microbatches.loss, parts.parts, alike=parts.is_plain)
    if bounds is None:
        return None
    try:
        return InParts(model, runtime, microbatches, (pipeline, batch), bounds).run
    except CompileError as error:
        runtime.programs.refuse(kind_of_call(model, parts.parts[0]), error)
        return None


def _refuse_returned_inputs(bounds: Sequence[Bound], inputs: Sequence[torch.Tensor]) -> None:
    """Raise if gradients would come to an input without the graph, which does not have it as an output."""
    given = {id(one) for one in inputs if one.requires_grad}
    if any(id(one) in given for bound in bounds for one in tensors_in(bound.template)):
        raise CompileError(
            "its code returns an input that has a gradient, as it is, and in microbatches no gradient would "
            "come back to it: return x.clone()"
        )


@dataclass(eq=False)
class Incoming:
    """Where the gradients of a microbatch's output come in.

    Args:
        microbatch: the microbatch.
        number: of the output.
        value: the output, as it is joined.
        place: where they are wanted.
    """

    microbatch: int
    number: int
    value: torch.Tensor
    place: str
    incoming: list[tuple[torch.Tensor, None]] = field(default_factory=list)


class InParts:
    """One call in microbatches.

    Args:
        model: the model.
        runtime: its runtime.
        microbatches: how its step is split.
        asked: the list of tasks, and the batch.
        bounds: by microbatch, its graph.
    """

    def __init__(
        self,
        model: nn.Module,
        runtime: Runtime,
        microbatches: Microbatches,
        asked: tuple[Pipeline, Batch],
        bounds: Sequence[Bound],
    ) -> None:
        self._model, self._runtime, self._backend = model, runtime, runtime.backend
        self._microbatches, self._bounds = microbatches, bounds
        self._pipeline, self._batch = asked
        self._compiler = compiler = runtime.programs.compiler(runtime)
        graphs = [bound.captured.compiled(runtime, bound.flat, compiler) for bound in bounds]
        goes_back = torch.is_grad_enabled() and model.training
        losses = [self._loss_of(bound, one) for bound, one in zip(bounds, graphs, strict=True)]
        self._losses = [one for one in losses if one is not None] if goes_back and None not in losses else []
        self._values = list[Values]()
        made: dict[int, Values] = {}
        for number, (bound, compiled) in enumerate(zip(bounds, graphs, strict=True)):
            given = frozenset(self._losses[number : number + 1] or compiled.tangents)
            like = None if bound.like is None else made.get(id(bound.like))
            if like is not None and like.kind != (compiled, given):
                like = None
            values = made[id(bound)] = Values(compiled, bound.flat, given, like, bound.own)
            self._values.append(values)
        random = any(one.is_random for one in graphs)
        self._draws = random_states(self._backend, (), len(bounds)) if random else []
        self._loop, self._averages = self._made_loop(), Averages(self._backend)
        self._in_parts = batch_parts = [one for _, _, each in self._batch.parts.leaves for one in each]
        if goes_back and not self._losses:
            _refuse_returned_inputs(bounds, batch_parts)
        inputs = [whole for whole, _, _ in self._batch.parts.leaves]
        self._weights = leaves_of(self._values, set(map(id, batch_parts)))
        self._leaves = [*self._weights, *inputs]
        self._roots: dict[int, Incoming] = {}
        self._later: list[tuple[int, int]] = []

    def _made_loop(self) -> Loop:
        return Loop(self._backend, self._values, self._draws)

    def run(self) -> Any:
        """Run what the call has to run."""
        backend = self._backend
        backend.spend("step", backend.host)
        backend.spend("waiting_gradient", backend.host, len(self._leaves))
        backend.spend("microbatch", backend.host, len(self._values))
        self._loop.run(self._tasks_now())
        if self._losses:
            self._averages.begin(self._weights, self._loop.totals, self._loop.places_of)
        _write(self._loop, self._bounds[-1], self._values[-1], backend, waits=not self._losses)
        self._runtime.counts["programs"] = self._loop.count
        wait_for_all_sends(backend)
        for bound in self._bounds:
            bound.captured.tell(self._compiler)
        for states in self._draws:
            if states.have_drawn:
                states.move()
        self._keep()
        results = list(map(self._result_of, range(len(self._values))))
        root: Root | None = None
        if torch.is_grad_enabled():
            root = no_root if self._losses else self._root
        made = Returned(backend, self._batch, lambda: self._leaves, self._gradients, self._drain)
        return made.result(results, root, seeded=bool(self._losses))

    @property
    def values(self) -> Sequence[Values]:
        """By microbatch, the values of its programs."""
        return self._values

    def _loss_of(self, bound: Bound, compiled: Compiled) -> int | None:
        """Which output is the loss, if it has a gradient."""
        loss = loss_in(bound.template)
        if loss is None or not self._batch.verdict.is_number(loss_name(bound.template), [loss]):
            return None
        return next((n for n in compiled.tangents if bound.captured.tokens[n] is loss), None)

    def _tasks_now(self) -> Iterator[tuple[int, int]]:
        """The tasks of the call, each after those that it needs; backwards without a loss wait."""
        for is_forward, microbatch, position in self._order():
            if is_forward:
                yield microbatch, position
            elif not self._losses:
                self._later.append((microbatch, position))
            else:
                if self._values[microbatch].backward is None:
                    self._seed(microbatch)
                yield microbatch, position

    def _order(self) -> list[tuple[bool, int, int]]:
        """The tasks in order; it is found once for each kind of call."""
        if any(one.compiled.joint.written for one in self._values):  # it depends on which buffers are one
            return list(in_order(self._pipeline.order, self._values))
        orders = self._runtime.programs.orders
        key = self._pipeline.order, *[one.kind for one in self._values]
        if key not in orders:
            orders[key] = list(in_order(self._pipeline.order, self._values))
        return orders[key]

    def _seed(self, microbatch: int) -> None:
        """Let the backward of a microbatch begin: its loss counts as much as its share of the batch."""
        number, verdict = self._losses[microbatch], self._batch.verdict
        name, values = loss_name(self._bounds[microbatch].template), self._values[microbatch]
        shares = verdict.shares_of(name) or verdict.others
        loss, place = values.outputs[number], values.compiled.tangent_place[number]
        share = share_at(place, self._backend, shares[microbatch])
        with self._backend.at(place, ""):
            known = not isinstance(share, torch.Tensor)
            seed = torch.full_like(loss, share) if known else share.to(loss.dtype).expand_as(loss)
        values.go_back({number: values.tangent(self._backend, number, seed)})

    def _result_of(self, microbatch: int) -> Any:
        values, bound = self._values[microbatch], self._bounds[microbatch]
        outputs = []
        for number in range(len(bound.captured.tokens)):
            value = values.output(number)
            if number in values.compiled.tangents:
                if not self._losses:
                    value = value.detach().requires_grad_()
                    place = values.compiled.tangent_place[number]
                    self._roots[id(value)] = Incoming(microbatch, number, value, place)
                elif number != self._losses[microbatch]:
                    value = value.detach().requires_grad_()  # the joined one says that it has no gradient
            outputs.append(value)
        return bound.result(outputs, deep=False)

    def _keep(self) -> None:
        """What the code keeps is that of the last microbatch which does."""
        for values, bound in zip(self._values, self._bounds, strict=True):
            if bound.kept:
                numbers = range(len(bound.captured.tokens))
                outputs = [values.output(number) for number in numbers]
                for number in values.compiled.tangents:
                    outputs[number] = without_gradient(outputs[number].detach(), self._leaves)
                bound.keep(outputs)

    def _root(self, microbatch: int, tensor: torch.Tensor) -> Incoming | None:
        return self._roots.get(id(tensor))

    def _drain(self) -> None:
        """Run the backwards that waited for `backward()`."""
        with self._microbatches.alone:
            self._loop.check_unchanged()
            tangents: list[dict[int, torch.Tensor]] = [{} for _ in self._values]
            for one in self._roots.values():
                grads = [grad for grad, _ in one.incoming]
                if grads:
                    with torch.no_grad(), self._backend.at(one.place, ""):
                        total = functools.reduce(torch.add, grads)
                    grad = self._values[one.microbatch].tangent(self._backend, one.number, total)
                    tangents[one.microbatch][one.number] = grad
            self._roots.clear()
            for values, given in zip(self._values, tangents, strict=True):
                values.go_back(given)
            self._loop.run(self._later)
            wait_for_all_sends(self._backend)
            for bound in self._bounds:
                bound.captured.tell(self._compiler)

    def _gradients(self) -> list[torch.Tensor | None]:
        """Those of weights, then of inputs."""
        number = len(self._weights)
        found = self._loop.gradients([*self._weights, *self._in_parts])
        for part, grad in zip(self._in_parts, found[number:], strict=True):
            part.grad = grad
        ofinputs = [joined_gradient(self._backend, *leaf) for leaf in self._batch.parts.leaves]
        return [*self._averages.finish(self._weights, found[:number]), *ofinputs]


def _write(loop: Loop, bound: Bound, values: Values, backend: AbstractBackend, *, waits: bool) -> None:
    """Forward is over: buffers get their new values, or new tensors take their places."""
    loop.write([one.before for one in bound.assigned], waits=waits)
    for one in bound.assigned:
        value, home = values.output(one.output), backend.place_of(one.before)
        if backend.place_of(value) != home:
            value = transfer(value, backend, home)
        one.table[one.name] = value


def leaves_of(values: Sequence[Values], others: Collection[int] = ()) -> list[torch.Tensor]:
    """What gets gradients."""
    found: dict[int, torch.Tensor] = {}
    for one in values:
        numbers: Iterable[int] = one.compiled.joint.gradients
        if one.like is not None:  # others are found already
            numbers = [number for number in one.own if number in one.compiled.joint.gradients]
        for number in numbers:
            tensor = one.flat[number]
            if id(tensor) not in others:
                found[id(tensor)] = tensor
    return list(found.values())


def in_order(order: Sequence[Task], values: Sequence[Values]) -> Iterator[tuple[bool, int, int]]:
    """Tasks with programs in a pipeline's order; one that needs another's result waits for it."""
    needs: dict[tuple[int, int], set[tuple[int, int]]] = {}
    touched: dict[int, set[tuple[int, int]]] = {}
    for number, one in enumerate(values):
        random, written = None, one.touching()
        for program in one.all_programs():
            found = {(number, position) for position in program.after}
            if number and one.is_forward(program.position):
                found.add((number - 1, program.position))
            for name, positions in written.items():
                if program.position in positions:
                    found |= touched.get(name, set())
            if random is not None and program.random:
                found.add((number, random))
            random = program.position if program.random else random
            needs[number, program.position] = found
        for name, positions in written.items():
            touched[name] = {(number, position) for position in positions}
    for found in needs.values():
        found &= needs.keys()
    waiting: list[tuple[bool, int, int]] = []
    for task in order:
        position = values[task.microbatch].compiled.cutting.position_of(task)
        if (task.microbatch, position) not in needs:
            continue
        waiting.append((task.phase == "forward", task.microbatch, position))
        ready = True
        while ready:
            ready = False
            for each in waiting:
                if not needs[each[1:]] & needs.keys():
                    waiting.remove(each)
                    del needs[each[1:]]
                    yield each
                    ready = True
                    break
    assert not waiting, waiting
