"""One call of a layer in a step: it waits or launches; what it needs is brought; it runs on its device."""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from baechi.errors import note_where
from baechi.run.compiled import written_forward
from baechi.run.runtime import Runtime
from baechi.run.steady.arguments import has_list, plain_tensors
from baechi.run.steady.layers import LayerFacts
from baechi.run.step.call import Call
from baechi.run.step.glue import GlueMode
from baechi.run.step.plain_loans import Plain, lend_plain
from baechi.run.step.reach import Reach, ReachAside, hidden_elsewhere, hides_elsewhere
from baechi.run.step.step import Step
from baechi.run.weights.match import has_weights
from baechi.split.tiles import Tile
from baechi.torchlib.modules.intercept import forward_to_run, original_forward
from baechi.torchlib.tensors.pytree import map_tensors


def run_layer(
    module: nn.Module, runtime: Runtime, glue: GlueMode, facts: LayerFacts, args: Any, kwargs: Any
) -> Any:
    """Run a layer that the code has reached.

    Args:
        module: the layer.
        runtime: its runtime.
        glue: the glue mode of the open step.
        facts: what is known of the layer.
        args: positional arguments.
        kwargs: keyword arguments.

    Returns:
        What it returns, on its device; or deferred tensors, if it has to wait for its turn.
    """
    name, step = facts.name, glue.step
    turn, call = next(step.turns), step.reach(name, args, kwargs)
    if step.inside is not None:
        return _inside_another(module, runtime, glue, facts, call, turn, args, kwargs)
    launch = functools.partial(_launch, module, runtime, glue, facts, call, turn)
    if step.reorder is None:
        return launch(args, kwargs)
    writes = facts.reaches or facts.writes(module)
    return step.reorder.layer(Call(call, launch, args, kwargs, facts.place, turn), module, writes=writes)


def _inside_another(
    module: nn.Module,
    runtime: Runtime,
    glue: GlueMode,
    facts: LayerFacts,
    call: str,
    turn: int,
    args: Any,
    kwargs: Any,
) -> Any:
    """Run a layer that another layer calls: at once. Its result goes to the calling layer's device."""
    place = glue.step.inside
    assert place is not None
    if not has_weights(module) and not isinstance(module, Tile):  # a tile is given its weight
        return original_forward(module)(*args, **kwargs)
    with ReachAside():
        result = _launch(module, runtime, glue, facts, call, turn, args, kwargs)
        return map_tensors(lambda tensor: glue.step.bring(tensor, place), result)


def _launch(
    module: nn.Module,
    runtime: Runtime,
    glue: GlueMode,
    facts: LayerFacts,
    call: str,
    turn: int,
    args: Any,
    kwargs: Any,
) -> Any:
    step, device = glue.step, facts.place
    depth, outer, step.inside = glue.leave(), step.inside, device
    try:
        tensors = plain_tensors(args, kwargs) if step.short and not facts.reaches else None
        lies_here = facts.lies_here if step.boundary is None else step.boundary.here(facts.lies_here)
        here = tensors is not None and all(map(lies_here, tensors))
        if here or (tensors is not None and _may_be_copies(facts, module, args, kwargs, tensors)):
            result = _shortly(module, runtime, step, facts, call, turn, (args, kwargs), here=here)
        else:
            step.full.append(call)
            result = _in_full(module, runtime, step, facts, call, turn, args, kwargs)
        if step.reorder is None or not step.reorder.launching:
            step.send_ahead(call, result)
    except Exception as error:
        hidden = hidden_elsewhere(step, device, args, kwargs) if isinstance(error, RuntimeError) else ""
        note_where(error, layer=facts.name, kind=type(module).__name__, device=device, cure=hidden)
        raise
    finally:
        step.inside = outer
        glue.come_back(depth)
    return result


def _shortly(
    module: nn.Module,
    runtime: Runtime,
    step: Step,
    facts: LayerFacts,
    call: str,
    turn: int,
    values: Plain,
    *,
    here: bool,
) -> Any:
    """Run a layer whose arguments are plain; what comes back is the same as by `_in_full`."""
    place, loans = facts.place, None
    if not here:
        values, loans = lend_plain(step, values, place, facts.lies_here)
    args, kwargs = values
    if facts.writes(module):
        step.may_write(values, list(facts.weights(module)))
        if facts.name not in runtime.writes_given:
            step.may_write_anything(place)
    own = forward_to_run(module)
    if place in step.bare:
        result = own(*args, **kwargs)
    else:
        step.backend.spend("layer_call", place)
        with step.backend.at(place, call) as note:
            result = own(*args, **kwargs)
            if note is not None:
                note(result)
    if loans is None:
        step.stamp(result, place, turn, renew=True)
        return result
    step.stamp(loans.made(result), place, turn, renew=True)
    return loans.settle(result)


def _may_be_copies(
    facts: LayerFacts, module: nn.Module, args: Any, kwargs: Any, tensors: list[torch.Tensor]
) -> bool:
    """Whether it makes no difference to the layer that some of its plain arguments are copies."""
    # several tensors may be views of one memory, and see what is written; and a list may be added to
    writes = len(tensors) > 1 and facts.writes(module)
    return not (writes or has_list(args) or (kwargs and has_list(kwargs.values())))


def _in_full(
    module: nn.Module,
    runtime: Runtime,
    step: Step,
    facts: LayerFacts,
    call: str,
    turn: int,
    args: Any,
    kwargs: Any,
) -> Any:
    """Run a layer whatever its arguments are."""
    name, device, backend = facts.name, facts.place, step.backend
    writes = facts.writes(module)
    reach: AbstractContextManager[Any] = nullcontext()
    (args, kwargs), loans = step.lend((args, kwargs), device, writes=writes)
    own = forward_to_run(module)
    if name in runtime.reaching or hides_elsewhere(step, device, loans.objects):
        reach, own = Reach(step, device, name, turn), written_forward(module, name)
    if writes:
        step.may_write(args, kwargs, list(module.buffers()), list(module.parameters()))
        if name not in runtime.writes_given:
            step.may_write_anything(device)
    backend.spend("layer_call", device)
    backend.spend("full_call", device)
    with backend.at(device, call) as note, reach:
        result = own(*args, **kwargs)
        if note is not None:
            note(result)
    step.stamp(loans.made(result), device, turn, renew=True)
    return loans.settle(result)
