"""The public functions around `distribute`: from a model to the distributed model and back."""

import functools
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi import run as run_room
from baechi.cost.optimizers import optimizer_costs, row_of
from baechi.place import find
from baechi.progress import say, verbosity
from baechi.records.cluster import Cluster
from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.report.summary import summary
from baechi.run.runtime import Reorder
from baechi.verbs.judging import checked, judged, runner
from baechi.verbs.planning import Placer, place, with_optimizer, within_memory
from baechi.verbs.profiling import Names, default_cluster, profile

logger = logging.getLogger(__name__)

Optimizer = str | torch.optim.Optimizer | None


def distribute(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    cluster: Cluster | None = None,
    placer: Placer = "auto",
    device_map: Mapping[str, int | str] | None = None,
    plan: Plan | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split_module_classes: Names | None = None,
    split_module_classes: Names | None = None,
    training: bool | None = None,
    optimizer: Optimizer = None,
    accumulate: bool = False,
    reorder: Reorder = True,
    verify: bool = True,
    verbose: bool | None = None,
) -> nn.Module:
    """Distribute a model over the devices of a cluster: profile, place, assign.

    Args:
        model: any module; it stays the same object, with the same parameters and state dict keys.
        example_inputs: a tensor, a tuple (positional), a dict (keyword) or `Inputs`; a list of such,
            if there are calls that take different paths through the model; None plans at the first
            call, with its inputs.
        cluster: the devices; by default all visible accelerators, or two emulated ones.
        placer: `"auto"`, `"single"`, `"m-topo"`, `"m-etf"`, `"m-sct"`, `"chain"`, `"even"`,
            `"round-robin"`, `"random:SEED"`, or a callable `(graph, cluster) -> Plan`.
        device_map: a placement by hand, device (name or index) by module name; instead of a placer.
        plan: a plan made before; instead of a placer.
        max_memory: bytes or text by device, as accelerate takes it; 0 forbids a device.
        no_split_module_classes: class names, classes or qualified names kept whole.
        split_module_classes: the same of modules that are divided into those inside of them.
        training: whether memory is that of training; `model.training` unless given.
        optimizer: its name, or an optimizer of this model, whose state counts and moves.
        accumulate: whether gradients are added up over several steps; see `profile`.
        reorder: launch layers in the plan's order. False, or `BAECHI_REORDER=0` in the environment, keeps
            the code's order, for debugging. A layer that had to wait launches right after the launch that
            it waited for (`"host"`, as True), or in another thread (`"threads"`).
        verify: whether dry runs decide if a plan fits (`dry_run`); else simulated peaks do. A plan that
            was made before is taken as it is.
        verbose: whether to show progress, and at the end one line about the plan, on the standard error;
            on a terminal only unless given.

    Returns:
        The same model.

    Raises:
        CaptureError: the model does not run with the example inputs.
        PlacementError: no placement fits the devices' memory.
        PlanError: the plan or device map does not match.
        BaechiError: the model is distributed already.
        ValueError: an unknown placer or optimizer, or more than one of placer, device_map and plan.
    """
    run_room.refuse_distributed(model)
    _check_choice(placer, device_map, plan)
    optimizer_costs(_optimizer_name(optimizer))
    if plan is not None:
        return run_room.assign(model, plan, reorder=reorder, optimizer=_instance(optimizer))
    cluster = default_cluster() if cluster is None else cluster
    cluster = cluster.with_memory(max_memory) if max_memory else cluster

    request = _Request(
        cluster,
        placer,
        device_map,
        no_split_module_classes,
        split_module_classes,
        training,
        optimizer,
        accumulate,
        reorder,
        verify,
        verbose,
    )
    if example_inputs is None:
        return run_room.plan_at_first_call(model, functools.partial(_fulfil, request))
    Inputs.each_of(example_inputs)  # raises for inputs of a wrong form, before any work
    _fulfil(request, model, example_inputs)
    return model


def assign(
    model: nn.Module, plan: Plan, *, reorder: Reorder = True, optimizer: torch.optim.Optimizer | None = None
) -> nn.Module:
    """Distribute a model as a plan says; see `distribute`.

    Args:
        model: the model that the plan was made for.
        plan: the plan.
        reorder: see `distribute`.
        optimizer: an optimizer made before; its existing state moves with its parameters.

    Returns:
        The same model.

    Raises:
        PlanError: the plan is of another model.
        BaechiError: the model is distributed already.
    """
    return run_room.assign(model, plan, reorder=reorder, optimizer=optimizer)


def restore(model: nn.Module, device: str = "cpu") -> nn.Module:
    """Undo `distribute`: plain forwards, all weights on one device.

    Args:
        model: a distributed model.
        device: where the weights go, as torch names it.

    Returns:
        The same model.

    Raises:
        BaechiError: the model is not distributed.
    """
    return run_room.restore(model, device)


def load(model: nn.Module, path: str | Path, *, strict: bool = True) -> nn.Module:
    """Load a safetensors checkpoint straight onto the devices of a distributed model.

    Weights on `meta` get their memory on their devices, and each tensor goes there as it is read, so the
    model may be larger than the host's memory: no more than one tensor of the checkpoint is there at a time.
    Parameters stay the same objects, ties stay ties. Floating-point values are cast to the model's dtype.

    Args:
        model: a distributed model; its weights may be on `meta` or not.
        path: a safetensors file, an index (`model.safetensors.index.json`), or the folder that has one.
        strict: every weight must be in the checkpoint (by one of its names, if tied), and nothing else.
            False loads what matches and logs the rest; a model with weights left on `meta` does not run.

    Returns:
        The same model.

    Raises:
        CheckpointError: weights are missing, unexpected, of another shape or dtype, or the checkpoint's
            files do not belong together: all are listed, and nothing was loaded.
        BaechiError: the model is not distributed, or not planned yet.
        FileNotFoundError: there is nothing at the path.
    """
    return run_room.load(model, path, strict=strict)


def plan_of(model: nn.Module) -> Plan:
    """The plan that a distributed model follows.

    Args:
        model: a distributed model.

    Raises:
        BaechiError: the model is not distributed, or not planned yet.
    """
    return run_room.plan_of(model)


def last_step(model: nn.Module) -> Timeline:
    """What was measured of a model's last step: its last call, and all that ran until its next one.

    Reading it waits for the devices.

    Args:
        model: a distributed model that was called inside `with cluster:`. On real devices that is the
            switch for timing it, by events around each layer and transfer.

    Returns:
        Spans with phase `"forward"`, `"backward"`, or `"other"` for work around the model; its
        `makespan_s` leaves the latter out, its `peak_bytes` does not.

    Raises:
        BaechiError: it is not distributed, was not called, or nothing was measured when it was.
    """
    return run_room.last_step(model)


def reordering(model: nn.Module, on: bool) -> AbstractContextManager[None]:
    """Let a model launch its layers in the plan's order, or not, for a stretch of code.

    Args:
        model: a distributed model.
        on: whether it reorders.

    Returns:
        A context manager.

    Raises:
        BaechiError: the model is not distributed (when it is entered).
    """
    return run_room.reordering(model, on)


def _check_choice(placer: Placer, device_map: Any, plan: Plan | None) -> None:
    if placer != "auto":
        find(placer)
    chosen = [placer != "auto", device_map is not None, plan is not None]
    if sum(chosen) > 1:
        raise ValueError("give one of placer, device_map and plan: each says where the layers go")
    if device_map is not None and not isinstance(device_map, Mapping):
        raise ValueError(
            f"device_map is {device_map!r}: it takes a mapping such as {{'encoder': 0, 'decoder': 1}}; "
            "for an automatic placement leave it out, or name a placer"
        )


@dataclass(frozen=True)
class _Request:
    """What `distribute` was asked for; kept until the first call if there are no example inputs yet."""

    cluster: Cluster
    placer: Placer
    device_map: Mapping[str, int | str] | None
    no_split: Names | None
    split: Names | None
    training: bool | None
    optimizer: Optimizer
    accumulate: bool
    reorder: Reorder
    verify: bool
    verbose: bool | None


def _fulfil(request: _Request, model: nn.Module, inputs: Any) -> None:
    with verbosity(request.verbose):
        plan = _planned(request, model, inputs)
        run_room.assign(model, plan, reorder=request.reorder, optimizer=_instance(request.optimizer))
        say(lambda: summary(plan))
    if logger.isEnabledFor(logging.INFO):  # steps may have to be simulated for it
        logger.info("%s", summary(plan))


def _planned(request: _Request, model: nn.Module, inputs: Any) -> Plan:
    graph = profile(
        model,
        inputs,
        cluster=request.cluster,
        training=request.training,
        accumulate=request.accumulate,
        no_split_module_classes=request.no_split,
        split_module_classes=request.split,
    )
    name = _optimizer_name(request.optimizer)
    run = runner(model, Inputs.each_of(inputs), request.optimizer, request.reorder)
    if request.device_map is not None:
        noted = with_optimizer(graph, name)
        plan = Plan.from_device_map(noted, request.cluster, request.device_map)
        return checked(plan, run) if request.verify else within_memory(plan)
    place_within = functools.partial(place, graph, placer=request.placer, optimizer=name)
    return judged(request.cluster, place_within, run) if request.verify else place_within(request.cluster)


def _instance(optimizer: Optimizer) -> torch.optim.Optimizer | None:
    """The optimizer, if it is more than a name."""
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else None


def _optimizer_name(optimizer: Optimizer) -> str | None:
    """The name under which the optimizer's state is counted."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    class_name = type(optimizer).__name__
    name = row_of(class_name, optimizer.param_groups)
    if name is None:
        logger.warning("%s: its state is counted as Adam's, two values per weight", class_name)
    return name or "adam"
