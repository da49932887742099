"""The public functions around `distribute`: from a model to the distributed model and back."""

import functools
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi import run as run_room
from baechi.place import find
from baechi.place.evaluated import Effort
from baechi.records.cluster import Cluster
from baechi.records.device_map import DeviceMap, check_names
from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run.runtime import Reorder
from baechi.run.weights.match import weights_of
from baechi.verbs.applying import applied, located
from baechi.verbs.given import (
    Compile,
    Optimizer,
    Outputs,
    PlanLike,
    check_outputs,
    check_owner,
    compile_options,
    instance_of,
    name_of,
    read_plan,
    tell_unused,
    with_outputs,
)
from baechi.verbs.planning import Placer, placed
from baechi.verbs.profiling import Names, Source, default_cluster, profile
from baechi.verbs.request import Request, fulfil

ClusterLike = Cluster | str | Path
MaxMemory = Mapping[int | str, int | str]


def distribute(
    model: nn.Module,
    inputs: Any = None,
    *,
    examples: Iterable[Any] | None = None,
    cluster: ClusterLike | None = None,
    placer: Placer = "auto",
    effort: Effort = 1,
    device_map: DeviceMap | None = None,
    plan: PlanLike | None = None,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Names | None = None,
    split_module_classes: Names | None = None,
    training: bool | None = None,
    optimizer: Optimizer = None,
    accumulate: bool = False,
    source: Source = "auto",
    reorder: Reorder = True,
    outputs: Outputs | None = None,
    compile: Compile | None = None,
    verify: bool = True,
    verbose: bool | None = None,
) -> nn.Module:
    """Distribute a model over the devices of a cluster: profile, place, assign.

    Args:
        model: any module; it stays the same object, with the same parameters and state dict keys.
        inputs: what the model is called with: a tensor, a tuple or a list of tensors (positional), a dict
            (keyword) or `Inputs`; None plans at the first call, with its inputs. A list of `Inputs`, dicts or
            tuples is several examples.
        examples: several inputs, if there are calls that take different paths through the model.
        cluster: the devices, or text that `Cluster.parse` reads; by default all visible accelerators, or two
            emulated ones. Devices to plan for stand for visible ones of their kinds.
        placer: `"auto"`, `"single"`, `"m-topo"`, `"m-etf"`, `"m-sct"`, `"chain"`, `"even"`,
            `"round-robin"`, `"random:SEED"`, or a callable `(graph, cluster) -> Plan`.
        effort: how long `"auto"` searches; see `place`.
        device_map: a placement by hand, or accelerate's, device (name or index) by module or weight; instead
            of a placer. See `Plan.from_device_map`.
        plan: a plan made before, or its file, as `assign` takes it; instead of a placer.
        max_memory: bytes or text by device, as accelerate takes it; 0 forbids a device.
        no_split_module_classes: class names, classes or qualified names kept whole.
        split_module_classes: the same of modules that are divided into those inside of them.
        training: whether memory is that of training; `model.training` unless given.
        optimizer: its name, or an optimizer of this model, whose state counts and moves.
        accumulate: whether gradients are added up over several steps; see `profile`.
        source: where times come from; see `profile`.
        reorder: launch layers in the plan's order. False, or `BAECHI_REORDER=0` in the environment, keeps
            the code's order, for debugging. A layer that had to wait launches right after the launch that
            it waited for (`"host"`, as True), or in another thread (`"threads"`).
        outputs: where what the model returns goes. `"inputs"`, unless a plan says otherwise: to where its
            inputs lie. `"device"`: each output stays on the device that made it, so that calls overlap; your
            code then brings together what it combines.
        compile: `"regions"` compiles repeated blocks (rows of modules of one class, with modules inside), a
            dict does with these arguments of `torch.compile`. Each block is one layer then.
        verify: whether dry runs decide if a plan fits (`dry_run`); else simulated peaks do. A plan that
            was made before is taken as it is.
        verbose: whether to show progress, and at the end one line about the plan, on the standard error;
            on a terminal only unless given.

    Returns:
        The same model.

    Raises:
        CaptureError: the model does not run with the inputs.
        PlacementError: no placement fits the devices' memory.
        PlanError: the plan or device map does not match, or its devices are not here.
        BaechiError: the model is distributed already.
        ValueError: an unknown placer, optimizer or choice of outputs, an optimizer of another model, or
            arguments that exclude each other.
    """
    run_room.refuse_distributed(model)
    _check_choice(placer, device_map, plan, max_memory)
    check_outputs(outputs)
    name = name_of(optimizer)
    check_owner(optimizer, model.parameters(), type(model).__name__)
    trained, options = instance_of(optimizer), compile_options(compile)
    if plan is not None:
        with run_room.blocks_compiled(model, options):
            return assign(model, plan, cluster=cluster, reorder=reorder, outputs=outputs, optimizer=trained)
    if device_map is not None:
        check_names(device_map, _names_in(model))
    devices = default_cluster() if cluster is None else located(Cluster.parse(cluster))
    devices = devices.with_memory(max_memory) if max_memory is not None else devices
    tell_unused(optimizer, training=model.training if training is None else training)

    profile_with = functools.partial(
        profile,
        cluster=devices,
        training=training,
        accumulate=accumulate,
        outputs=outputs or "inputs",
        no_split_module_classes=no_split_module_classes,
        split_module_classes=split_module_classes,
        source=source,
    )
    place_with = functools.partial(placed, placer=placer, optimizer=name, effort=effort)
    request = Request(
        devices, profile_with, place_with, device_map, name, optimizer, reorder, options, verify, verbose
    )
    if inputs is None and examples is None:
        return run_room.plan_at_first_call(model, functools.partial(fulfil, request))
    fulfil(request, model, Inputs.each_of(inputs, examples))
    return model


def assign(
    model: nn.Module,
    plan: PlanLike,
    *,
    cluster: ClusterLike | None = None,
    reorder: Reorder = True,
    outputs: Outputs | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> nn.Module:
    """Distribute a model as a plan says; see `distribute`.

    A plan may have been made for devices that are not here (`Cluster.uniform`, another machine): the i-th
    device of a kind in the plan is then the i-th one of that kind here.

    Args:
        model: the model that the plan was made for.
        plan: the plan, or the path of a file that `Plan.save` wrote.
        cluster: the devices to run on, or text that `Cluster.parse` reads; by default the plan's own if they
            are here, else all visible accelerators.
        reorder: see `distribute`.
        outputs: see `distribute`; as the plan says unless given.
        optimizer: an optimizer made before; its existing state moves with its parameters.

    Returns:
        The same model.

    Raises:
        PlanError: the plan is of another model; or its devices are not here, or have too little memory.
        BaechiError: the model is distributed already.
        ValueError: an unknown choice of outputs.
    """
    check_outputs(outputs)
    run_room.refuse_distributed(model)
    found = None if cluster is None else located(Cluster.parse(cluster))
    check_owner(optimizer, model.parameters(), type(model).__name__)
    chosen = with_outputs(read_plan(plan), outputs)
    run_room.assign(model, applied(chosen, found), reorder=reorder, optimizer=optimizer)
    return run_room.tell_uncompiled(model)


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


def _check_choice(
    placer: Placer, device_map: DeviceMap | None, plan: PlanLike | None, max_memory: MaxMemory | None
) -> None:
    if placer != "auto":
        find(placer)
    chosen = [placer != "auto", device_map is not None, plan is not None]
    if sum(chosen) > 1:
        raise ValueError("give one of placer, device_map and plan: each says where the layers go")
    if plan is not None and max_memory is not None:
        raise ValueError("max_memory says what to plan with, and a plan made before is taken as it is")
    if device_map is not None and not isinstance(device_map, Mapping):
        raise ValueError(
            f"device_map is {device_map!r}: it takes a mapping such as {{'encoder': 0, 'decoder': 1}}; "
            "for an automatic placement leave it out, or name a placer"
        )


def _names_in(model: nn.Module) -> set[str]:
    """Every name that a device map of the model may have."""
    modules = {name for name, _ in model.named_modules(remove_duplicate=False)}
    return modules | weights_of(model).keys()
