"""The public functions around `distribute`: from a model to the distributed model and back."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi import run as run_room
from baechi.backend.ranks.rendezvous import divide, stay_on_host
from baechi.place import find
from baechi.place.auto import check_effort
from baechi.place.evaluation import Effort
from baechi.place.recompute import Recompute
from baechi.records.cluster import Cluster
from baechi.records.device_map import DeviceMap, check_names
from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline
from baechi.records.stages import Stages
from baechi.run.pipeline.batch.partition import Split
from baechi.run.pipeline.microbatches import Loss
from baechi.run.weights.match import weights_of
from baechi.simulate.pipeline import OrderLike
from baechi.split.spec import Layers
from baechi.verbs.application import applied, located
from baechi.verbs.given import (
    Compile,
    Optimizer,
    Outputs,
    PlanLike,
    check_outputs,
    check_owner,
    check_recompute,
    check_reorder,
    check_switches,
    compile_options,
    instance_of,
    name_of,
    opened,
    read_plan,
    stages_of,
    tell_unused,
    with_outputs,
)
from baechi.verbs.pipeline.microbatches import (
    PipelineRequest,
    assign_pipeline,
    chosen,
    fulfil_pipeline,
    here,
)
from baechi.verbs.pipeline.request import Coupled, LossWeights, Number, Splitting, refuse_apart, splitting_of
from baechi.verbs.plans import Placer, placed
from baechi.verbs.profile import Names, Source, default_cluster, profile
from baechi.verbs.ranks.distribution import (
    Ranked,
    assign_in_ranks,
    by_first,
    check_ranks,
    check_replicas,
    is_over_ranks,
    ranks_cluster,
    refuse_in_ranks,
    seated,
    stages_in_ranks,
)
from baechi.verbs.reordering import ReorderLike, decided
from baechi.verbs.request import Request, fulfil, planned
from baechi.verbs.split.request import asked_to_split, refuse_layers_with

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
    plan: PlanLike | Pipeline | None = None,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Names | None = None,
    split_module_classes: Names | None = None,
    training: bool | None = None,
    optimizer: Optimizer = None,
    accumulate: bool = False,
    source: Source = "auto",
    reorder: ReorderLike = "auto",
    recompute: Recompute = None,
    outputs: Outputs | None = None,
    compile: Compile | None = None,
    microbatches: Number | None = None,
    loss: Loss | None = None,
    split: Layers | Split | None = None,
    loss_weights: LossWeights | None = None,
    order: OrderLike = "auto",
    coupled: Coupled = "refuse",
    weights_apart: bool = False,
    replicas: int | None = None,
    verify: bool = True,
    verbose: bool | None = None,
) -> nn.Module:
    """Distribute a model over the devices of a cluster: profile, place, assign.

    Args:
        model: any module; it stays the same object, with the same parameters and state dict keys.
        inputs: what the model is called with: a tensor, a tuple or a list of tensors (positional), a dict
            (keyword) or `Inputs`; None plans at the first call, with its inputs. A list of `Inputs`, dicts or
            tuples is several examples. Where they lie counts: by default outputs go there.
        examples: several inputs, if there are calls that take different paths through the model.
        cluster: the devices, or text that `Cluster.parse` reads; by default all visible accelerators, or two
            emulated ones; of several processes that `torchrun` started, one device each. Devices to plan for
            stand for visible ones of their kinds.
        placer: `"auto"`, `"single"`, `"m-topo"`, `"m-etf"`, `"m-sct"`, `"chain"`, `"even"`,
            `"round-robin"`, `"random:SEED"`, or a callable `(graph, cluster) -> Plan`.
        effort: how long `"auto"` searches; see `place`.
        device_map: a placement by hand, or accelerate's, device (name or index) by module or weight; instead
            of a placer. See `Plan.from_device_map`.
        plan: a plan or pipeline made before, or a plan's file, as `assign` takes it; instead of a placer.
        max_memory: bytes or text by device, as accelerate takes it; 0 forbids a device.
        no_split_module_classes: class names, classes or qualified names kept whole.
        split_module_classes: the same of modules that are divided into those inside of them.
        training: whether memory is that of training; `model.training` unless given.
        optimizer: its name, or an optimizer of this model, whose state counts and moves.
        accumulate: whether gradients are added up over several steps; see `profile`.
        source: where times come from; see `profile`.
        reorder: whether layers launch in the plan's order (True) or as the code reaches them (False); a
            layer that had to wait launches right after the launch that it waited for, or in a thread of its
            own (`"threads"`). `"auto"`: in the plan's order if that makes a shorter step, with the host's
            time to let layers wait. `BAECHI_REORDER=0` in the environment turns it off for all models.
        recompute: qualified names of modules whose activations are not kept: backward runs their forward
            again, which takes time and saves memory. `"auto"` takes as few as needed.
        outputs: where what the model returns goes. `"inputs"`, unless a plan says otherwise: to where its
            inputs lie. `"device"`: each output stays on the device that made it, so that calls overlap; your
            code then brings together what it combines.
        compile: `"regions"` compiles repeated blocks (rows of modules of one class, with modules inside), a
            dict does with these arguments of `torch.compile`. Each block is one layer then. `"stages"`
            captures the whole model once, and runs a program for each part of the plan; `"auto"` does so
            where it can be captured. `baechi.Stages` says how.
        microbatches: into how many parts a step is split, whose layers are in flight at once; `"auto"` takes
            the fastest number. `inputs` are a whole batch. The call of the model then runs forward and
            backward; `backward()` hands the gradients over.
        loss: with `microbatches`, from what the model returns and the call's `target`, the loss. Unless
            given, the model returns it: a scalar, `.loss` or `["loss"]`; else `backward()` runs backward.
        split: layers to split over several devices, by name: a number of shards, a dimension with one
            (`{"head": {"out": 4}}`), or a `BatchSpec`; `"auto"` splits what fits nowhere, else
            the heaviest layer where steps get at least 3 % shorter. With `microbatches`, names that are no
            layer's are inputs' (`"batch.mask"`: what is in one): the dimension of their rows, `"items"` if
            items of a list are rows, None for what goes whole, a function `(name, value, microbatches)` that
            returns what each microbatch gets, or a list of that. Others are split along the leading
            dimension, or by items, if they have as many as the batch has rows.
        loss_weights: with `microbatches`, what the loss of each counts: `"rows"`, `"sum"`, `"labels"` (those
            that are not ignored), or a function of their inputs; unless given, the whole batch tells.
        order: with `microbatches`, the order of their tasks; see `pipeline`.
        coupled: with `microbatches`, what to do if these train something else than the whole batch:
            `"refuse"` raises, `"accept"` says it once.
        weights_apart: with `microbatches`, whether gradients of weights are tasks of their own, which fill
            what is idle ("zero bubble"), where steps are predicted shorter by it. It takes more memory.
        replicas: of several processes, into how many groups they are divided, each with the whole model and
            batches of its own; gradients are their mean, as of `DistributedDataParallel`. See `replica`.
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
        RankError: several processes were not given the same, or another one failed.
        BatchCoupled: in the first step, not here, unless `microbatches` is `"auto"`: see `coupled`.
        ValueError: an unknown placer, optimizer or choice of outputs, an optimizer of another model, a batch
            that cannot be split, or arguments that exclude each other.
    """
    asked = _Asked(**{name: value for name, value in locals().items() if name != "model"})
    run_room.refuse_distributed(model)
    means = _meant(model, asked)
    check_replicas(replicas, alone=not is_over_ranks(cluster))
    if is_over_ranks(cluster):
        return _over_ranks(model, asked, means)
    if isinstance(cluster, Cluster) and cluster.ranks:  # emulated in one process, as several would run it
        means = replace(means, stages=stages_in_ranks(means.stages))
    made, trained, stages = means.plan, means.trained, means.stages
    if made is not None:
        with run_room.blocks_compiled(model, means.options):
            if isinstance(made, Pipeline) and means.splitting is not None:
                return assign_pipeline(model, here(made, cluster, outputs), means.splitting, trained, stages)
            assert not isinstance(made, Pipeline)
            return _assigned(model, made, cluster, reorder, outputs, {"optimizer": trained, "stages": stages})
    if device_map is not None:
        check_names(device_map, _names_in(model))
    request = _request(model, asked, means, _devices(asked))
    if means.splitting is not None:
        wanted = _of_pipeline(asked, means.splitting, request)
        if examples is not None:
            raise ValueError("microbatches go with one example: give inputs, a whole batch")
        if inputs is None:
            return run_room.plan_at_first_call(model, functools.partial(fulfil_pipeline, wanted))
        fulfil_pipeline(wanted, model, Inputs.of(inputs))
        return model
    if inputs is None and examples is None:
        return run_room.plan_at_first_call(model, functools.partial(fulfil, request))
    fulfil(request, model, Inputs.each_of(inputs, examples))
    return model


@dataclass(frozen=True)
class _Asked:
    """What `distribute` was given, by the names of its arguments."""

    inputs: Any
    examples: Iterable[Any] | None
    cluster: ClusterLike | None
    placer: Placer
    effort: Effort
    device_map: DeviceMap | None
    plan: PlanLike | Pipeline | None
    max_memory: MaxMemory | None
    no_split_module_classes: Names | None
    split_module_classes: Names | None
    training: bool | None
    optimizer: Optimizer
    accumulate: bool
    source: Source
    reorder: ReorderLike
    recompute: Recompute
    outputs: Outputs | None
    compile: Compile | None
    microbatches: Number | None
    loss: Loss | None
    split: Layers | Split | None
    loss_weights: LossWeights | None
    order: OrderLike
    coupled: Coupled
    weights_apart: bool
    replicas: int | None
    verify: bool
    verbose: bool | None


@dataclass(frozen=True)
class _Meant:
    """What was asked for, read and checked.

    Args:
        plan: the plan that was given, opened where it is a pipeline's file.
        optimizer: whose state counts.
        trained: the optimizer itself, if one was given.
        options: what `torch.compile` is given for repeated blocks.
        stages: how the whole step is compiled.
        layers: which layers are split.
        splitting: how the step is split; None for a plain one.
    """

    plan: PlanLike | Pipeline | None
    optimizer: str | None
    trained: torch.optim.Optimizer | None
    options: Mapping[str, Any] | None
    stages: Stages | None
    layers: Layers | None
    splitting: Splitting | None


def _meant(model: nn.Module, asked: _Asked) -> _Meant:
    plan, kind = opened(asked.plan), type(model).__name__
    _check_choice(asked.placer, asked.device_map, plan, asked.max_memory, asked.recompute)
    check_outputs(asked.outputs)
    check_reorder(asked.reorder)
    check_effort(asked.effort)
    names = ("accumulate", "verify", "weights_apart", "training", "verbose")
    check_switches(**{name: getattr(asked, name) for name in names})
    check_recompute(asked.recompute, _modules_in(model), kind)
    optimizer = name_of(asked.optimizer)
    check_owner(asked.optimizer, model.parameters(), kind)
    options, stages = compile_options(asked.compile), stages_of(asked.compile)
    in_parts = asked.microbatches is not None or isinstance(plan, Pipeline)
    layers, inputs_split = asked_to_split(asked.split, model, microbatches=in_parts)
    splitting = splitting_of(
        asked.microbatches, plan, asked.loss, inputs_split, asked.loss_weights, asked.order, asked.coupled
    )
    refuse_apart(asked.weights_apart, splitting, plan, asked.recompute)
    refuse_layers_with(layers, plan=plan)
    return _Meant(plan, optimizer, instance_of(asked.optimizer), options, stages, layers, splitting)


def _over_ranks(model: nn.Module, asked: _Asked, means: _Meant) -> nn.Module:
    """One model over several processes: rank 0 plans."""
    by_function = callable(asked.loss_weights)
    told = {
        **{name: getattr(asked, name) for name in ("microbatches", "compile", "coupled")},
        "optimizer": means.optimizer,
        "loss": asked.loss is not None,
        "loss_weights": "a function" if by_function else asked.loss_weights,
    }
    refuse_in_ranks(
        {
            "layers": means.layers,
            "examples": asked.examples is not None,
            "regions": means.options is not None,
            "at_first_call": asked.inputs is None and means.plan is None,
            "auto": asked.microbatches == "auto",
            "outputs": asked.outputs,
        }
    )
    wanted_devices = None if asked.cluster is None else Cluster.parse(asked.cluster)
    if wanted_devices is not None and wanted_devices.emulated:
        stay_on_host()
    divide(asked.replicas or 1)
    batch = None if asked.inputs is None else Inputs.each_of(asked.inputs)
    over = Ranked(batch, means.splitting, means.trained, stages_in_ranks(means.stages), asked.verbose)
    check_ranks(model, over, told)
    devices = ranks_cluster(wanted_devices)
    plan = means.plan
    if plan is not None:
        made = by_first(lambda: seated(plan if isinstance(plan, Pipeline) else read_plan(plan), devices))
        return assign_in_ranks(model, made, over)
    if asked.device_map is not None:
        check_names(asked.device_map, _names_in(model))
    devices = devices if asked.max_memory is None else devices.with_memory(asked.max_memory)
    request = _request(model, asked, means, devices)
    if means.splitting is None:
        each = batch or []
        graph_of = functools.partial(request.profile_with, model, examples=each)
        return assign_in_ranks(model, by_first(lambda: planned(request, model, each, graph_of())), over)
    wanted, number = _of_pipeline(asked, means.splitting, request), means.splitting.microbatches
    made = by_first(lambda: chosen(wanted, model, Inputs.of(asked.inputs), number))
    return assign_in_ranks(model, made, over)


def _devices(asked: _Asked) -> Cluster:
    found = default_cluster() if asked.cluster is None else located(Cluster.parse(asked.cluster))
    return found if asked.max_memory is None else found.with_memory(asked.max_memory)


def _request(model: nn.Module, asked: _Asked, means: _Meant, devices: Cluster) -> Request:
    """What is planned for, on devices that are here."""
    tell_unused(asked.optimizer, training=model.training if asked.training is None else asked.training)
    as_given = ("training", "accumulate", "no_split_module_classes", "split_module_classes", "source")
    profile_with = functools.partial(
        profile,
        cluster=devices,
        outputs=asked.outputs or ("device" if devices.ranks else "inputs"),
        programs=bool(devices.ranks) or (means.stages is not None and means.stages.required),
        **{name: getattr(asked, name) for name in as_given},
    )
    place_with = functools.partial(
        placed,
        placer=asked.placer,
        optimizer=means.optimizer,
        effort=asked.effort,
        recompute=asked.recompute,
    )
    return Request(
        cluster=devices,
        profile_with=profile_with,
        place_with=place_with,
        device_map=asked.device_map,
        recompute=asked.recompute,
        optimizer_name=means.optimizer,
        optimizer=asked.optimizer,
        reorder=asked.reorder,
        compile=means.options,
        stages=means.stages,
        layers=means.layers,
        verify=asked.verify,
        verbose=asked.verbose,
    )


def _of_pipeline(asked: _Asked, splitting: Splitting, request: Request) -> PipelineRequest:
    of_part = functools.partial(request.profile_with, weights_apart=asked.weights_apart)
    return PipelineRequest(request, splitting, of_part, asked.placer, asked.effort)


def assign(
    model: nn.Module,
    plan: PlanLike | Pipeline,
    *,
    cluster: ClusterLike | None = None,
    reorder: ReorderLike = "auto",
    outputs: Outputs | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> nn.Module:
    """Distribute a model as a plan says; see `distribute`.

    A plan may have been made for devices that are not here (`Cluster.uniform`, another machine): the i-th
    device of a kind in the plan is then the i-th one of that kind here.

    Args:
        model: the model that the plan was made for.
        plan: a plan, or a pipeline, whose steps are split; or the path of a file that either's `save` wrote.
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
    plan = opened(plan)
    if isinstance(plan, Pipeline):
        check_owner(optimizer, model.parameters(), type(model).__name__)
        return assign_pipeline(model, here(plan, cluster, outputs), Splitting(plan.microbatches), optimizer)
    check_owner(optimizer, model.parameters(), type(model).__name__)
    return _assigned(model, plan, cluster, reorder, outputs, {"optimizer": optimizer})


def _assigned(
    model: nn.Module,
    plan: PlanLike,
    cluster: ClusterLike | None,
    reorder: ReorderLike,
    outputs: Outputs | None,
    given: dict[str, Any],
) -> nn.Module:
    found = None if cluster is None else located(Cluster.parse(cluster))
    chosen = applied(with_outputs(read_plan(plan), outputs), found)
    run_room.assign(model, chosen, reorder=decided(reorder, chosen), **given)
    return run_room.tell_uncompiled(model)


def _check_choice(
    placer: Placer,
    device_map: DeviceMap | None,
    plan: PlanLike | Pipeline | None,
    max_memory: MaxMemory | None,
    recompute: Recompute,
) -> None:
    if placer != "auto":
        find(placer)
    chosen = [placer != "auto", device_map is not None, plan is not None]
    if sum(chosen) > 1:
        raise ValueError("give one of placer, device_map and plan: each says where the layers go")
    if plan is not None and max_memory is not None:
        raise ValueError("max_memory says what to plan with, and a plan made before is taken as it is")
    if plan is not None and recompute is not None:
        raise ValueError("a plan made before says which modules run again (plan.recompute)")
    if device_map is not None and not isinstance(device_map, Mapping):
        raise ValueError(
            f"device_map is {device_map!r}: it takes a mapping such as {{'encoder': 0, 'decoder': 1}}; "
            "for an automatic placement leave it out, or name a placer"
        )


def _names_in(model: nn.Module) -> set[str]:
    """Every name that a device map of the model may have."""
    return {*_modules_in(model), *weights_of(model)}


def _modules_in(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_modules(remove_duplicate=False)]
