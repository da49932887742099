"""The wrappers around `forward`: module-level functions that find their runtime through the module."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from baechi.errors import note_where
from baechi.run.deferred.call import Call
from baechi.run.deferred.tensor import force_all
from baechi.run.foresee.fake_watch import refuse_if_foreseeing
from baechi.run.guards.refusal import refuse_tracing, tell_compiled
from baechi.run.runtime import BINDING, Binding, Runtime, binding_of
from baechi.run.shares import Seat, shares_of
from baechi.run.state.contents import Contents
from baechi.run.step.glue import GlueMode
from baechi.run.step.reach import Reach, hidden_elsewhere, hides_elsewhere, reach_aside
from baechi.run.weights.match import has_weights
from baechi.run.weights.settle import settled
from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.modules.intercept import original_forward
from baechi.torchlib.private.autograd import current_graph_task_id
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in


@uncompiled
def call_root(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the root, or a submodule that calls layers on several devices.

    Inside a step such a submodule is ordinary code. Called on its own it opens a step: an encoder used
    alone, or a block that activation checkpointing recomputes in backward.

    Args:
        module: the module.
        *args, **kwargs: as the user passed them.

    Returns:
        What the module returns, on the device of the inputs.
    """
    return _call(module, args, kwargs, original_forward(module))


@uncompiled
def call_fused_stack(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a stack of fused layers: as `call_root`, with the glue mode off, since it disables fast paths.

    Args:
        module: a module of a type in `FUSED_STACKS`.
        *args, **kwargs: as the model's code passed them.

    Returns:
        What the module returns.
    """
    return _call(module, args, kwargs, functools.partial(_without_glue_mode, module))


@uncompiled
def call_layer(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a layer: bring its arguments to its device, and run it there.

    The actual arguments decide which tensors travel, never the profile.

    Args:
        module: the module.
        *args, **kwargs: as the model's code passed them.

    Returns:
        What the layer returns, on its device; on the inputs' device if called outside a step.
    """
    binding: Binding = module.__dict__[BINDING]
    runtime = binding.runtime
    if current_graph_task_id() == -1:
        glue = runtime.glue
        if glue is not None:
            return _on_device(module, runtime, glue, binding.seat, args, kwargs)
    return _call(module, args, kwargs, functools.partial(_in_step, module, runtime, binding.seat))


@uncompiled
def call_shared_layer(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a layer without weights: as `call_layer` in a step of a model that contains it, else plainly.

    Args:
        module: the module.
        *args, **kwargs: as the model's code passed them.

    Returns:
        What the layer returns.
    """
    shares = shares_of(module)
    current = shares.current() if shares is not None else None
    if current is None:
        return original_forward(module)(*args, **kwargs)
    runtime, seat = current
    return _in_step(module, runtime, seat, *args, **kwargs)


def _call(module: nn.Module, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
    """Run in this thread's open step, or in a new step."""
    runtime = _binding(module).runtime
    if current_graph_task_id() != -1:
        runtime.step_until_backward_ends()
    if runtime.glue is not None:
        return run(*args, **kwargs)
    refuse_tracing(module)
    tell_compiled(module)
    force_all((args, kwargs), "another model takes values")
    settled(module, _binding(module))
    with runtime.step(module) as step:
        result = run(*args, **kwargs)
        if step.schedule is not None:
            step.schedule.finish()
        return step.bring_home(result, (args, kwargs))


def _without_glue_mode(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    runtime = _binding(module).runtime
    glue = runtime.glue
    assert glue is not None
    if glue.step.schedule is not None:
        glue.step.schedule.force_values(tensors_in(args, kwargs), "a fused stack takes values")
    first = next(tensors_in(args, kwargs), None)
    place = runtime.backend.place_of(first) if first is not None else runtime.backend.host
    if place in runtime.backend.names:  # its own code between its layers (on a mask, say) runs there, too
        (args, kwargs), _ = glue.step.lend((args, kwargs), place)
    with glue.off(), runtime.backend.at(place):
        return original_forward(module)(*args, **kwargs)


def _in_step(module: nn.Module, runtime: Runtime, seat: Seat, /, *args: Any, **kwargs: Any) -> Any:
    glue = runtime.glue
    assert glue is not None
    return _on_device(module, runtime, glue, seat, args, kwargs)


def _on_device(
    module: nn.Module, runtime: Runtime, glue: GlueMode, seat: Seat, args: Any, kwargs: Any
) -> Any:
    refuse_if_foreseeing(seat[0])
    step = glue.step
    turn, call = step.next_turn(), step.call_of(seat[0])
    if step.inside is not None:
        return _inside_another(module, runtime, glue, seat, call, turn, args, kwargs)
    schedule = step.schedule
    if schedule is None:
        return _launch(module, runtime, glue, seat, call, turn, args, kwargs)
    launch = functools.partial(_launch, module, runtime, glue, seat, call, turn)
    if schedule.may_launch(call):
        return schedule.launch_here(call, launch, args, kwargs)
    there = runtime.backend.kernel_device(seat[1])
    contents = Contents(module, args, kwargs)
    foresee = functools.partial(runtime.foresight.layer, module, seat[0], there, args, kwargs, contents.state)
    writes = not runtime.only_reads(seat[0], training=module.training)
    keeps = tuple(module.buffers()) if writes else ()
    return schedule.layer(
        Call(call, launch, args, kwargs, foresee, seat[1], turn, keeps, contents),
        cannot_wait=functools.partial(runtime.foresight.cannot_wait, module, seat[0]),
        writes=writes,
    )


def _inside_another(
    module: nn.Module,
    runtime: Runtime,
    glue: GlueMode,
    seat: Seat,
    call: str,
    turn: int,
    args: Any,
    kwargs: Any,
) -> Any:
    """Run a layer that another layer calls: at once. Its result goes to the calling layer's device."""
    place = glue.step.inside
    assert place is not None
    if not has_weights(module):
        return original_forward(module)(*args, **kwargs)
    with reach_aside():
        result = _launch(module, runtime, glue, seat, call, turn, args, kwargs)
        return map_tensors(lambda tensor: glue.step.bring(tensor, place), result)


def _launch(
    module: nn.Module,
    runtime: Runtime,
    glue: GlueMode,
    seat: Seat,
    call: str,
    turn: int,
    args: Any,
    kwargs: Any,
) -> Any:
    (name, device), step, backend = seat, glue.step, runtime.backend
    writes = not runtime.only_reads(name, training=module.training)
    loans = None
    reach: AbstractContextManager[Any] = nullcontext()
    depth, outer, step.inside = glue.leave(), step.inside, device
    try:
        if kwargs or not step.all_here(args, device):
            (args, kwargs), loans = step.lend((args, kwargs), device, writes=writes)
        if name in runtime.reaching or (loans is not None and hides_elsewhere(step, device, loans.objects)):
            reach = Reach(step, device, name, turn)
        if writes:
            step.may_write(args, kwargs, list(module.buffers()), list(module.parameters()))
            if name not in runtime.writes_given:
                step.may_write_anything(device)
        backend.spend("layer_call", device)
        with backend.at(device, call) as note, reach:
            result = original_forward(module)(*args, **kwargs)
            if note is not None:
                note(result)
        if loans is None:
            step.stamp(result, device, turn, renew=True)
        else:
            step.stamp(loans.made(result), device, turn, renew=True)
            result = loans.settle(result)
        if step.schedule is None or not step.schedule.pending.launching:
            step.send_ahead(call, result)
        if step.schedule is not None:
            step.schedule.launcher.note(result)
    except Exception as error:
        hidden = hidden_elsewhere(step, device, args, kwargs) if isinstance(error, RuntimeError) else ""
        note_where(error, layer=name, kind=type(module).__name__, device=device, cure=hidden)
        raise
    finally:
        step.inside = outer
        glue.come_back(depth)
    return result


def _binding(module: nn.Module) -> Binding:
    binding = binding_of(module)
    assert binding is not None
    return binding
