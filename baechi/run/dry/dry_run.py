"""Run a plan on its emulated cluster with tensors that have no values.

    model ──fake weights──▶ assign ──▶ two steps ──▶ timeline
                              │           │
                           runtime     emulated cluster: places, streams, clocks, memory

Everything is what a run has, but kernels: those are shape functions. So what comes out is what the emulated
cluster would measure, for models that no machine here can hold.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import nn

from baechi.backend import DeviceMemoryError, suspended
from baechi.backend.virtual.emulation import Emulation
from baechi.cost.optimizers import optimizer_costs
from baechi.errors import BaechiError, DryRunError
from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run.assign import assign, refuse_distributed
from baechi.run.dry.loop import Optimizer, infer, optimizer_for, train
from baechi.run.dry.valueless import valueless_inputs, valueless_weights
from baechi.run.launch.user_line import line_of
from baechi.run.runtime import Reorder
from baechi.torchlib.autocast import autocast_everywhere
from baechi.torchlib.fakes.at_work import fakes_at_work
from baechi.torchlib.fakes.kernels import ShapeKernels, memory_left_unfilled
from baechi.torchlib.modules.as_found import left_as_found
from baechi.uncollected import only_new_ones

_NO_LIMIT = 2**62


def dry_run(
    model: nn.Module,
    inputs: Inputs,
    plan: Plan,
    *,
    optimizer: Optimizer = None,
    steps: int = 2,
    reorder: Reorder = True,
) -> Timeline:
    """Run a plan without values.

    Args:
        model: the model that the plan is for; left exactly as found.
        inputs: arguments of a call.
        plan: the plan. It is run on an emulated twin of its cluster, if that is not emulated.
        optimizer: its name, or an optimizer of the model.
        steps: how many steps run; the first one makes the optimizer's state.
        reorder: as `assign` takes it.

    Returns:
        The last step. Where a device is too small, its peak is above its memory.

    Raises:
        DryRunError: the model decides by values that are not known.
        BaechiError: the model is distributed already.
        PlanError: the plan is of another model.
        ValueError: an unknown optimizer, or `steps` below 1.
    """
    refuse_distributed(model)
    if isinstance(optimizer, str):
        optimizer_costs(optimizer)  # says at once which names there are
    if steps < 1:
        raise ValueError(f"steps is {steps}: at least one has to run")
    try:
        return _run(model, inputs, plan, optimizer, steps, reorder)
    except DeviceMemoryError:
        return _run(model, inputs, _without_limits(plan), optimizer, steps, reorder)


def _run(
    model: nn.Module, inputs: Inputs, plan: Plan, optimizer: Optimizer, steps: int, reorder: Reorder
) -> Timeline:
    training, accumulate = plan.graph.training, bool(plan.graph.graph.get("accumulate"))
    twin = replace(plan, cluster=replace(plan.cluster, emulated=True))
    shapes = ShapeKernels()
    with _set_aside(model), _explained(), valueless_weights(model):
        if training != model.training:
            model.train(training)
        assign(model, twin, reorder=reorder)
        foreach = None if plan.cluster.emulated or _is_cpu(plan) else True
        updates = optimizer_for(optimizer, model, foreach=foreach) if training else None
        args, kwargs = valueless_inputs((inputs.args, inputs.kwargs))
        with Emulation(twin.cluster, shapes) as emulation, torch.set_grad_enabled(training):
            for _ in range(steps):
                emulation.synchronize()
                if training:
                    train(model, args, kwargs, updates, accumulate=accumulate)
                else:
                    infer(model, args, kwargs)
            return emulation.timeline()


@contextmanager
def _set_aside(model: nn.Module) -> Iterator[None]:
    """Everything that a dry run changes is put back after it."""
    with ExitStack() as stack:
        stack.callback(torch.clear_autocast_cache)  # it keeps casts of weights
        stack.enter_context(suspended())
        stack.enter_context(only_new_ones())
        stack.enter_context(left_as_found(model, contents="no parameters"))
        stack.enter_context(fakes_at_work())
        stack.enter_context(memory_left_unfilled())
        stack.enter_context(autocast_everywhere())
        yield


@contextmanager
def _explained() -> Iterator[None]:
    """Say of what the model's code raises that it may be for want of values."""
    try:
        yield
    except BaechiError:
        raise
    except Exception as error:  # the model's code may raise anything on a fake tensor
        line = line_of(error)
        where = f" at {line}" if line else ""
        raise DryRunError(
            f"the model does not run without values ({type(error).__name__}{where}: {_first_line(error)}); "
            "the simulated timeline still stands"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _without_limits(plan: Plan) -> Plan:
    devices = tuple([replace(device, memory_bytes=_NO_LIMIT) for device in plan.cluster.devices])
    return replace(plan, cluster=replace(plan.cluster, devices=devices))


def _is_cpu(plan: Plan) -> bool:
    return all(device.kind.lower() == "cpu" for device in plan.cluster.devices)
