"""A plain step, from the call of the model to its result; a step in microbatches is `pipeline.call`.

run_step ──> open_step: the glue mode is on, and sees each functional op of the model's code (`step.glue`)
  the code calls a layer ──> run_layer
      fast path    nothing can wait, and all that the layer needs lies at its place: its own forward runs
      full path    it waits for its turn, if the plan says so (`reorder.schedule`)
                   ──> _launch: what it needs is brought, it runs on its device, its result is sent ahead
  the code is over ──> what still waits launches, and the outputs go home
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from baechi.errors import note_where
from baechi.run.compiled_modules import written_forward
from baechi.run.runtime import Runtime
from baechi.run.sharded.output import settled
from baechi.run.steady.arguments import has_list, plain_tensors
from baechi.run.steady.layers import LayerFacts
from baechi.run.step.call import Call
from baechi.run.step.call_sites import CallSites
from baechi.run.step.glue import GlueMode
from baechi.run.step.plain_loans import Plain, lend_plain
from baechi.run.step.reach import Reach, ReachAside, hidden_elsewhere, hides_elsewhere
from baechi.run.step.step import Step
from baechi.run.weights.match import has_weights
from baechi.split.layer_shard import LayerShard
from baechi.torchlib.modules.intercept import forward_to_run, original_forward
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import stamp


def run_step(module: nn.Module, runtime: Runtime, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a model's code in a step of its own."""
    with open_step(module, runtime) as glue:
        step, first = glue.step, next(tensors_in(args, kwargs), None)
        step.home = None if first is None else runtime.backend.place_of(first)
        result = run(*args, **kwargs)
        if step.reorder is not None:
            step.reorder.finish()
        if runtime.outputs_stay:
            return settled(result, runtime.backend, None)
        depth = glue.leave()  # what brings outputs home is no code of the model
        try:
            return step.bring_home(result, (args, kwargs))
        finally:
            glue.come_back(depth)


@contextmanager
def open_step(module: nn.Module, runtime: Runtime) -> Iterator[GlueMode]:
    """Open a step in this thread."""
    backend, step = runtime.backend, Step(runtime.backend, runtime)
    glue = GlueMode(step)
    with backend.step() as runtime.measure:
        if runtime.measure is not None:
            backend.spend("step", backend.host)
        step.reorder = schedule = runtime.schedule(glue, module)
        step.bare = frozenset(filter(backend.is_bare, backend.names))
        step.swift = step.short and schedule is None
        step.sites = CallSites(runtime.moves) if runtime.moves else None
        runtime.forced, runtime.launched, runtime.counts = [], [], {}
        try:
            with runtime.opened(glue):
                try:
                    yield glue
                except BaseException as error:
                    if schedule is not None:
                        schedule.drop(error)
                    raise
        finally:
            if schedule is not None:
                step.reorder = None
                runtime.forced, runtime.launched = schedule.forced, schedule.launched
                runtime.counts = schedule.counts
            runtime.full = step.full
            if backend.outstanding:
                step.close()


def run_layer(
    module: nn.Module, runtime: Runtime, glue: GlueMode, facts: LayerFacts, args: Any, kwargs: Any
) -> Any:
    """Run a layer that the code has reached."""
    step, place = glue.step, facts.place
    if step.boundary is not None and step.inside is None:
        return _run_in_part(module, runtime, glue, facts, args, kwargs)
    reads = facts.reads_in_training if module.training else facts.reads_in_evaluation
    # what the full path does and this leaves out: transfers, their order with writes, streams, clock, turns
    fast = step.swift and reads and not kwargs and not facts.reaches and place in step.bare
    if not fast or step.inside is not None:
        return _run_at_its_turn(module, runtime, glue, facts, args, kwargs)
    depth, lies_here = glue.leave(), facts.lies_here
    try:
        for value in args:
            if not isinstance(value, torch.Tensor) or not lies_here(value):
                break
        else:
            call, turn = "", next(step.turns)
            if facts.sends or step.sites is not None:  # else only its device matters, not which call it is
                call = step.reach(facts.name, args, {})
            step.inside = place
            result = forward_to_run(module)(*args)
            if isinstance(result, torch.Tensor):
                stamp(result, place, turn, renew=True)
                if facts.sends:
                    step.send_ahead(call, result)
            else:
                step.stamp(result, place, turn, renew=True)
            return result
    except Exception as error:
        note_where(error, layer=facts.name, kind=type(module).__name__, device=place)
        raise
    finally:
        step.inside = None
        glue.come_back(depth)
    return _run_at_its_turn(module, runtime, glue, facts, args, kwargs)


def _run_in_part(
    module: nn.Module, runtime: Runtime, glue: GlueMode, facts: LayerFacts, args: Any, kwargs: Any
) -> Any:
    """Run a layer that a microbatch's code has reached."""
    step, place = glue.step, facts.place
    boundary, reads = step.boundary, not facts.writes(module)
    assert boundary is not None
    depth = glue.leave()  # what is asked of tensors here is no code of the model
    try:
        # what the full path does and this leaves out: transfers, cuts, turns of lanes
        fast = step.short and reads and not facts.reaches
        objects: list[Any] = []
        values = (*args, *kwargs.values()) if kwargs else args
        call = boundary.reach_here(facts, values, objects) if fast else None
        if call is None:
            return _run_at_its_turn(module, runtime, glue, facts, args, kwargs)
        turn, step.inside = next(step.turns), place
        try:
            if objects:
                result = _with_objects(
                    _Reached(module, runtime, glue, facts, call, turn), (args, kwargs), objects
                )
            else:
                result = _run_there(module, step, place, call, (args, kwargs))
            step.stamp(result, place, turn, renew=True)
            step.send_ahead(call, result)
            return result
        except Exception as error:
            _note(error, module, step, facts, (args, kwargs))
            raise
        finally:
            step.inside = None
    finally:
        glue.come_back(depth)


class _Reached(NamedTuple):
    """A call of a layer that the code has reached.

    Args:
        module: the layer.
        runtime: its runtime.
        glue: the glue mode of the open step.
        facts: what is known of the layer.
        call: its name, with the number of its call.
        turn: its place in the code's order.
    """

    module: nn.Module
    runtime: Runtime
    glue: GlueMode
    facts: LayerFacts
    call: str
    turn: int


def _run_at_its_turn(
    module: nn.Module, runtime: Runtime, glue: GlueMode, facts: LayerFacts, args: Any, kwargs: Any
) -> Any:
    """Run a layer at its turn, wherever its arguments lie."""
    step, turn = glue.step, next(glue.step.turns)
    reached = _Reached(module, runtime, glue, facts, step.reach(facts.name, args, kwargs), turn)
    if step.inside is not None:
        return _inside_another(reached, args, kwargs)
    if step.reorder is None:
        return _launch(reached, args, kwargs)
    call = Call(reached.call, functools.partial(_launch, reached), args, kwargs, facts.place, turn)
    return step.reorder.layer(call, module, writes=facts.reaches or facts.writes(module))


def _launch(reached: _Reached, args: Any, kwargs: Any) -> Any:
    module, glue, facts, call = reached.module, reached.glue, reached.facts, reached.call
    step, device = glue.step, facts.place
    depth, outer, step.inside = glue.leave(), step.inside, device
    try:
        objects: list[Any] = []
        tensors = plain_tensors(args, kwargs, objects) if step.short and not facts.reaches else None
        lies_here = facts.lies_here if step.boundary is None else step.boundary.here(facts.lies_here)
        here = plain = tensors is not None and all(map(lies_here, tensors))
        if tensors is not None and not here:  # then it must make no difference that some are copies
            # several tensors may be views of one memory, and see what is written; and a list may be added to
            writes = len(tensors) > 1 and facts.writes(module)
            plain = not (writes or has_list(args) or (kwargs and has_list(kwargs.values())))
        if plain:
            result = _with_plain_arguments(reached, (args, kwargs), objects, here=here)
        else:
            result = _with_any_arguments(reached, (args, kwargs))
        if step.reorder is None or not step.reorder.launching:
            step.send_ahead(call, result)
    except Exception as error:
        _note(error, module, step, facts, (args, kwargs))
        raise
    finally:
        step.inside = outer
        glue.come_back(depth)
    return result


def _note(error: Exception, module: nn.Module, step: Step, facts: LayerFacts, values: Plain) -> None:
    """Note in an error which layer raised it; and tensors that its arguments hide elsewhere."""
    hidden = hidden_elsewhere(step, facts.place, *values) if isinstance(error, RuntimeError) else ""
    note_where(error, layer=facts.name, kind=type(module).__name__, device=facts.place, cure=hidden)


def _with_plain_arguments(reached: _Reached, values: Plain, objects: list[Any], *, here: bool) -> Any:
    """Run a layer whose arguments are plain, or objects: what comes back is as with any arguments."""
    module, facts, step = reached.module, reached.facts, reached.glue.step
    place, loans = facts.place, None
    if not here:
        values, loans = lend_plain(step, values, place, facts.lies_here)
    args, kwargs = values
    if facts.writes(module):
        step.may_write(values, list(facts.weights(module)))
        if facts.name not in reached.runtime.writes_given:
            step.may_write_anything(place)
    if objects:
        result = _with_objects(reached, (args, kwargs), objects)
    else:
        result = _run_there(module, step, place, reached.call, (args, kwargs))
    if loans is None:
        step.stamp(result, place, reached.turn, renew=True)
        return result
    step.stamp(loans.made(result), place, reached.turn, renew=True)
    return loans.settle(result)


def _run_there(module: nn.Module, step: Step, place: str, call: str, values: Plain) -> Any:
    """Run a layer's own forward on its device."""
    own, (args, kwargs) = forward_to_run(module), values
    if place in step.bare:
        return own(*args, **kwargs)
    step.backend.spend("layer_call", place)
    with step.backend.at(place, call) as note:
        result = own(*args, **kwargs)
        if note is not None:
            note(result)
    return result


def _with_any_arguments(reached: _Reached, values: tuple[Any, Any]) -> Any:
    module, runtime, facts, step = reached.module, reached.runtime, reached.facts, reached.glue.step
    writes = facts.writes(module)
    (args, kwargs), loans = step.lend(values, facts.place, writes=writes)
    if writes:
        step.may_write(args, kwargs, list(module.buffers()), list(module.parameters()))
        if facts.name not in runtime.writes_given:
            step.may_write_anything(facts.place)
    result = _with_objects(reached, (args, kwargs), loans.objects)
    step.stamp(loans.made(result), facts.place, reached.turn, renew=True)
    return loans.settle(result)


def _with_objects(reached: _Reached, values: tuple[Any, Any], objects: list[Any]) -> Any:
    """Run a layer that may reach tensors in objects that it is given, or as capture saw."""
    module, facts, step = reached.module, reached.facts, reached.glue.step
    name, device, backend, (args, kwargs) = facts.name, facts.place, step.backend, values
    step.full.append(reached.call)
    reach: AbstractContextManager[Any] = nullcontext()
    own = forward_to_run(module)
    if name in reached.runtime.reaching or hides_elsewhere(step, device, objects):
        reach, own = Reach(step, device, reached.turn), written_forward(module, name)
    backend.spend("layer_call", device)
    backend.spend("full_call", device)
    with backend.at(device, reached.call) as note, reach:
        result = own(*args, **kwargs)
        if note is not None:
            note(result)
    return result


def _inside_another(reached: _Reached, args: Any, kwargs: Any) -> Any:
    """Run a layer that another layer calls: at once. Its result goes to the calling layer's device."""
    module, step = reached.module, reached.glue.step
    place = step.inside
    assert place is not None
    if not has_weights(module) and not isinstance(module, LayerShard):  # a shard is given its weight
        return original_forward(module)(*args, **kwargs)
    with ReachAside():
        result = _launch(reached, args, kwargs)
        return map_tensors(lambda tensor: step.bring(tensor, place), result)
