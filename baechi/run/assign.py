"""Model and plan -> the same model, distributed; and back."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from baechi.backend.ranks.devices import RankDevices
from baechi.backend.real.devices import TorchDevices
from baechi.cost.regions import around
from baechi.errors import BaechiError, RankError
from baechi.records.device_map import ROOT
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.stages import Stages
from baechi.records.timeline import Timeline
from baechi.run.binding import Binding, bind, binding_of, unbind
from baechi.run.calls import (
    call_fused_stack,
    call_joined,
    call_layer,
    call_root,
    call_shared_layer,
    call_split_layer,
)
from baechi.run.checkpoints.whole import teach_gathering
from baechi.run.compiled_modules import set_compiled_aside, uncompile, watch_compile
from baechi.run.first_call import forget_first_call
from baechi.run.guards.checkpoint_generators import keep_generators
from baechi.run.guards.models import refuse_foreign
from baechi.run.guards.refusal import allow_moves, refuse_moves
from baechi.run.pipeline.microbatches import Microbatches
from baechi.run.programs.capture import Captures
from baechi.run.ranks.looks import look
from baechi.run.ranks.weights import keep_own
from baechi.run.recompute import call_recomputed, wrap_recomputed
from baechi.run.runtime import Reorder, Runtime
from baechi.run.sharded.layers import drop_shards, make_shards, sharded_layer_of
from baechi.run.shares import join, leave, shares_of
from baechi.run.step.set_beside import watch_set
from baechi.run.weights.load import unwatch_loading, watch_loading
from baechi.run.weights.match import has_weights, match_weights, modules_of, weights_of
from baechi.run.weights.move import flatten_recurrent, move
from baechi.run.weights.replicas import end_replicas, leave_sharded_alone
from baechi.run.weights.shards import by_shard, join_weights, shard_weights
from baechi.run.whole import hook, unhook
from baechi.torchlib.modules.compiled_modules import bring_back
from baechi.torchlib.modules.fast_paths import FUSED_STACKS
from baechi.torchlib.modules.intercept import is_replaced, replace_forward, restore_forward
from baechi.torchlib.private.modules import has_forward
from baechi.torchlib.tensors.storage import remove_mark


def assign(
    model: nn.Module,
    plan: Plan,
    *,
    reorder: Reorder = True,
    optimizer: torch.optim.Optimizer | None = None,
    microbatches: Microbatches | None = None,
    stages: Stages | None = None,
) -> nn.Module:
    """Distribute a model as a plan says: move its weights, wrap its layers.

    A plan on one device moves the weights and leaves every `forward` as it is. Weights on `meta` stay
    there until they are loaded.
    """
    refuse_distributed(model)
    planned, weights, modules = match_weights(model, plan), weights_of(model), modules_of(model)
    runtime = Runtime(plan, reorder=reorder)
    shards = make_shards(plan, modules)
    shard_weights(weights, runtime.cuts, planned, runtime.backend, optimizer)
    if isinstance(runtime.backend, RankDevices):
        runtime.look_in_ranks = look
        weights = keep_own(model, weights, planned, runtime.backend, optimizer)
        teach_gathering(model, runtime.backend)
    move(by_shard(weights, runtime.cuts), planned, runtime.backend, optimizer)
    runtime.settled = not any(weight.is_meta for weight in weights.values())
    if isinstance(runtime.backend, TorchDevices):
        flatten_recurrent(model)
        watch_set()
        runtime.settled = False  # flat weights are new memory, which has no marks
    keep_generators(runtime.backend)
    if optimizer is not None:
        runtime.optimizer = weakref.ref(optimizer)
    bind(model, Binding(runtime, ROOT))
    watch_loading(model, runtime)
    runtime.microbatches = microbatches
    runtime.captures = None if stages is None else Captures(stages)
    leave_sharded_alone(model, runtime)
    if len(plan.devices_used) > 1 or microbatches is not None or shards or stages is not None:
        _wrap(model, runtime, planned, shards)
    else:
        hook(model)
        wrap_recomputed(model, plan.recompute)
    return model


def restore(model: nn.Module, device: str = "cpu") -> nn.Module:
    """Undo `distribute` or `assign`: plain forwards, all weights on one device, with their optimizer's state.

    Args:
        model: a distributed model (one that waits for its first call, too).
        device: where the weights go, as torch names it.

    Returns:
        The same model.

    Raises:
        BaechiError: the model is not distributed, or over ranks.
    """
    binding = binding_of(model)
    if binding is None and not is_replaced(model):
        raise BaechiError(f"this {type(model).__name__} is not distributed: there is nothing to restore")
    if binding is not None and binding.runtime.over_ranks:
        raise RankError(
            f"this {type(model).__name__} is distributed over ranks, and none has all of its weights: end "
            "the processes, and load a checkpoint in one"
        )
    for module in model.modules() if binding is not None else (model,):
        if binding is None or leave(module, binding.runtime):
            restore_forward(module)
            bring_back(module)
        drop_shards(module)
        unbind(module)
    uncompile(model, binding.runtime.blocks if binding is not None else ())
    unhook(model)
    unwatch_loading(model)
    allow_moves(model)
    forget_first_call(model)
    end_replicas(model, binding.runtime if binding is not None else None)
    weights = weights_of(model)
    optimizer = binding.runtime.optimizer() if binding is not None else None
    join_weights(weights, optimizer)
    move(weights, dict.fromkeys(weights, device), TorchDevices((device,)), optimizer)
    for weight in weights.values():
        remove_mark(weight)
    return model


def plan_of(model: nn.Module) -> Plan | Pipeline:
    """Return what a distributed model runs.

    Args:
        model: a distributed model.

    Returns:
        The plan that its steps follow; of a model that runs in microbatches the pipeline, whose `timeline` is
        that of the whole batch, and whose `plan` has the costs of one microbatch.

    Raises:
        BaechiError: the model is not distributed, or waits for its first call to be planned.
    """
    runtime = runtime_of(model)
    if runtime.microbatches is None:
        return runtime.plan
    pipeline: Pipeline = runtime.microbatches.pipeline
    return pipeline


def last_step(model: nn.Module) -> Timeline:
    """Return the measured timeline of a model's last step: its last call, and all that ran after it.

    After `Trainer.train` with an evaluation at its end, that is the evaluation's last call: `mode` says so.

    Args:
        model: a distributed model.

    Returns:
        The timeline; its `mode` says whether the step was one of training.

    Raises:
        BaechiError: it is not distributed, was not called, or nothing was measured when it was.
    """
    runtime = runtime_of(model)
    if runtime.measure is None:
        raise BaechiError(
            f"no step of this {type(model).__name__} was measured: call it inside `with cluster:`, where "
            "cluster is that of its plan"
        )
    timeline = runtime.measure()
    return replace(timeline, counters={**timeline.counters, **runtime.counts})


@contextmanager
def reordering(model: nn.Module, on: bool) -> Iterator[None]:
    """Turn launching in the plan's order on or off within a `with` block.

    Args:
        model: a distributed model.
        on: whether it reorders.

    Raises:
        BaechiError: the model is not distributed.
    """
    runtime = runtime_of(model)
    before, runtime.reorder = runtime.reorder, (runtime.reorder or True) if on else False
    try:
        yield
    finally:
        runtime.reorder = before


def runtime_of(model: nn.Module) -> Runtime:
    """The runtime of a distributed model."""
    binding = binding_of(model)
    if binding is not None:
        return binding.runtime
    waits = "is planned at its first call" if is_replaced(model) else "is not distributed"
    raise BaechiError(f"this {type(model).__name__} {waits}: it has no plan yet")


def refuse_distributed(model: Any) -> None:
    """Raise if a model, or a part of it, is distributed, or cannot be."""
    refuse_foreign(model)
    for name, module in model.named_modules():
        plain = shares_of(module) is not None or not is_replaced(module)
        if binding_of(module) is not None or not plain:
            what = f"its part {name}" if name else f"this {type(model).__name__}"
            raise BaechiError(f"{what} is distributed already: call baechi.restore on it first")


def _wrap(model: nn.Module, runtime: Runtime, planned: dict[str, str], shards: dict[str, nn.Module]) -> None:
    modules = {**modules_of(model), **shards}
    devices = _layer_devices(runtime.plan, modules, planned)
    wrapped: set[int] = set()
    for name, module in modules.items():
        if sharded_layer_of(module) is not None and id(module) not in wrapped:
            wrapped.add(id(module))
            bind(module, Binding(runtime, name))
            _replace(module, runtime, name, "", call_split_layer)
    for name, device in devices.items():
        if id(modules[name]) not in wrapped:
            wrapped.add(id(modules[name]))
            _wrap_layer(modules[name], runtime, name, device)
    again = frozenset(runtime.plan.recompute)
    layers = {modules[name] for name in devices}
    below = _devices_below(devices)
    for name, module in modules.items():
        fused = isinstance(module, FUSED_STACKS)
        called = has_forward(module)  # not a ModuleList
        if id(module) not in wrapped and called and (fused or name in again or _begins_steps(name, below)):
            wrapped.add(id(module))
            bind(module, Binding(runtime, name))
            device = "".join(below[name]) if len(below.get(name, ())) == 1 else ""
            _replace(module, runtime, name, device, call_fused_stack if fused else call_root)
    set_compiled_aside([module for name, module in modules.items() if name != ROOT], layers)
    watch_compile()
    refuse_moves(model, devices, runtime.plan.to_device_map())


def _wrap_layer(module: nn.Module, runtime: Runtime, name: str, device: str) -> None:
    if has_weights(module):
        bind(module, Binding(runtime, name, device))
        _replace(module, runtime, name, device, call_layer)
        return
    join(module, runtime, (name, device))
    if not is_replaced(module):
        _replace(module, runtime, name, device, call_shared_layer)


def _replace(module: nn.Module, runtime: Runtime, name: str, device: str, call: Callable[..., Any]) -> None:
    """Replace a module's forward by a call; by one that keeps no activations if the plan says so."""
    again = name in runtime.plan.recompute
    if runtime.leaves_sharded and call in (call_layer, call_shared_layer, call_fused_stack):
        call = functools.partial(call_joined, call)
    replace_forward(module, functools.partial(call_recomputed, call, device) if again else call)


def _layer_devices(plan: Plan, modules: dict[str, nn.Module], planned: dict[str, str]) -> dict[str, str]:
    """Device of each module wrapped as a layer: layers of the graph, and leaf modules not in the graph."""
    devices = {}
    for node, costs in plan.graph.placed_costs():
        if costs.kind == "layer" and not costs.unread:
            devices[plan.graph.module_of(node)] = plan.device_of[node]
    layers = frozenset(devices)
    own = _devices_below(planned)
    for name, module in modules.items():
        inside = not layers.isdisjoint(around(name))
        if name in devices or inside or next(module.children(), None) is not None or sharded_layer_of(module):
            continue
        if len(own.get(name, ())) == 1:
            devices[name] = next(iter(own[name]))
    return devices


def _begins_steps(name: str, below: dict[str, set[str]]) -> bool:
    """Whether a module opens a step if it is called alone: the root, what lies on several devices, and the
    largest parts that lie on one."""
    devices, above = len(below.get(name, ())), next(around(name), ROOT)
    if name == ROOT or devices > 1:
        return True
    return devices == 1 and (above == ROOT or len(below[above]) > 1)


def _devices_below(devices: dict[str, str]) -> dict[str, set[str]]:
    """By module, the devices of its submodules, at any depth."""
    below: dict[str, set[str]] = {}
    for name, device in devices.items():
        for module in around(name):
            below.setdefault(module, set()).add(device)
    return below
