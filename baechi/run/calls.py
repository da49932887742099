"""The wrappers around `forward`: module-level functions that find their runtime through the module."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from baechi.errors import BaechiError
from baechi.records.device_map import ROOT
from baechi.records.inputs import Inputs
from baechi.run.binding import BINDING, Binding
from baechi.run.guards.refusal import refuse_tracing, tell_compiled
from baechi.run.pipeline.call import call_pipelined
from baechi.run.pipeline.walk import with_loss
from baechi.run.plain_step import run_layer, run_step
from baechi.run.programs.call import call_in_parts, call_whole
from baechi.run.ranks.call import call_in_ranks, call_whole_in_ranks, told_to_others
from baechi.run.reorder.deferred_values import force
from baechi.run.runtime import Runtime
from baechi.run.sharded.layers import run_shards
from baechi.run.sharded.output import ShardedOutput, joined
from baechi.run.shares import Seat, shares_of
from baechi.run.state.thread_as_found import left_as_before
from baechi.run.step.glue import GlueMode
from baechi.run.step.step import Step
from baechi.run.weights.replicas import meet_replicas
from baechi.run.weights.settle import settled, why_elsewhere
from baechi.torchlib.dynamo import uncompiled
from baechi.torchlib.modules.intercept import forward_to_run, original_forward
from baechi.torchlib.private.autograd import current_graph_task_id
from baechi.torchlib.private.compiler import is_in_compiled_model
from baechi.torchlib.private.modes import function_mode_count, function_modes
from baechi.torchlib.shards.table import LAYERS
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in


@uncompiled
def call_root(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the root, or a submodule that calls layers on several devices.

    Inside a step such a submodule is ordinary code. Called on its own it opens a step: an encoder used
    alone, or a block that activation checkpointing recomputes in backward.
    """
    return _call(module, args, kwargs, original_forward(module))


@uncompiled
def call_fused_stack(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a stack of fused layers: as `call_root`, with the glue mode off, since it disables fast paths."""
    return _call(module, args, kwargs, functools.partial(_without_glue_mode, module))


@uncompiled
def call_layer(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a layer: bring its arguments to its device, and run it there.

    The actual arguments decide which tensors travel, never the profile.
    """
    binding: Binding = module.__dict__[BINDING]
    runtime = binding.runtime
    if current_graph_task_id() == -1:
        glue = runtime.glue
        if glue is not None:
            facts = binding.facts or binding.known(module)
            return run_layer(module, runtime, glue, facts, args, kwargs)
    return _call(module, args, kwargs, functools.partial(_in_step, module, runtime, binding.seat))


@uncompiled
def call_split_layer(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the shards of a split layer, and join what they return."""
    runtime = module.__dict__[BINDING].runtime
    return _call(module, args, kwargs, functools.partial(run_shards, module, runtime))


@uncompiled
def call_shared_layer(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a layer without weights: as `call_layer` in a step of a model that contains it, else plainly."""
    shares = shares_of(module)
    current = shares.current() if shares is not None else None
    if current is None:
        return forward_to_run(module)(*args, **kwargs)
    runtime, seat = current
    return _in_step(module, runtime, seat, *args, **kwargs)


@uncompiled
def call_joined(call: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a layer of a model in which outputs of split layers may be sharded.

    It is given wholes, but for an activation: that is the op that it calls.
    """
    if any(isinstance(tensor, ShardedOutput) for tensor in tensors_in(args, kwargs)):
        glue = next((mode for mode in function_modes() if isinstance(mode, GlueMode)), None)
        if glue is not None and type(module).__name__ in LAYERS:
            return forward_to_run(module)(*args, **kwargs)  # its ops go shard by shard, or join
        args, kwargs = glue.joined((args, kwargs)) if glue is not None else joined((args, kwargs))
    return call(module, *args, **kwargs)


def _call(module: nn.Module, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
    """Run in this thread's open step, or in a new step."""
    binding: Binding = module.__dict__[BINDING]
    runtime = binding.runtime
    if current_graph_task_id() != -1:
        runtime.step_until_backward_ends()
    if runtime.glue is not None:
        return run(*args, **kwargs)
    refuse_tracing(module)
    if is_in_compiled_model(module):
        tell_compiled(module)
    if function_mode_count():  # in the code of another model, perhaps
        force((args, kwargs), "another model takes values")
    settled(module, binding)
    if runtime.cuts and binding.name == ROOT:
        meet_replicas(module, runtime)
    split = runtime.microbatches if binding.name == ROOT else None
    if split is not None:
        run = functools.partial(with_loss, run, split.loss)
    called = functools.partial(run_step, module, runtime, run, args, kwargs)
    inputs = Inputs(*args, **kwargs)
    if runtime.captures is not None and binding.name == ROOT:
        loss = None if split is None else split.loss
        whole = call_whole_in_ranks if runtime.over_ranks else call_whole
        called = functools.partial(whole, module, runtime, loss, called, inputs)
    if split is not None:
        programs = call_in_ranks if runtime.over_ranks else call_in_parts
        compiled = None if runtime.captures is None else programs
        called = functools.partial(call_pipelined, module, runtime, split, called, inputs, compiled)
    try:
        with told_to_others(runtime):
            return left_as_before(called)
    except RuntimeError as error:
        why = "" if isinstance(error, BaechiError) else why_elsewhere(module, binding)
        if why:
            raise BaechiError(f"{why}. (The call failed: {error})") from error
        raise


def _without_glue_mode(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    runtime = module.__dict__[BINDING].runtime
    glue = runtime.glue
    assert glue is not None
    if glue.step.reorder is not None:
        glue.step.reorder.launch_all("a fused stack takes values")
    first = next(tensors_in(args, kwargs), None)
    place = runtime.backend.place_of(first) if first is not None else runtime.backend.host
    with glue.off(), runtime.backend.at(place):
        if place in runtime.backend.names:  # its own code between its layers (on a mask, say) runs there, too
            args, kwargs = map_tensors(functools.partial(_brought, glue.step, place), (args, kwargs))
        return original_forward(module)(*args, **kwargs)


def _brought(step: Step, place: str, tensor: torch.Tensor) -> torch.Tensor:
    """What lies there stays as it is: its layers, not the stack, say which stage reads it."""
    return tensor if step.backend.place_of(tensor) == place else step.bring(tensor, place)


def _in_step(module: nn.Module, runtime: Runtime, seat: Seat, /, *args: Any, **kwargs: Any) -> Any:
    glue = runtime.glue
    assert glue is not None
    return run_layer(module, runtime, glue, runtime.facts_of(module, seat), args, kwargs)
