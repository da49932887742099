"""From a model to one whose steps are split into microbatches: what `distribute(microbatches=...)` does.

the batch in m parts ─▶ profile of one ─▶ place, order ─▶ dry run ─▶ assign
         for each m that "auto" tries
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from baechi.cost.recompute import recomputed
from baechi.errors import CaptureError, DryRunError, PlacementError, note
from baechi.place.evaluated import Effort
from baechi.place.fullness import recompute_helps, resized
from baechi.place.pipeline.unsplit import with_unsplit
from baechi.place.recompute import Recompute
from baechi.place.recompute.names import modules_named
from baechi.progress import progress, say, verbosity
from baechi.records.cluster import Cluster
from baechi.records.device import excess_over
from baechi.records.device_map import DeviceMap
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.report.summary import pipeline_summary, summary
from baechi.run import assign, blocks_compiled, restore, tell_uncompiled
from baechi.run.dry.dry_run import dry_run
from baechi.run.pipeline.batch.shares import Told
from baechi.run.pipeline.batch.splitting import Parted, parted, rows_of
from baechi.run.pipeline.microbatches import Microbatches
from baechi.run.pipeline.walking import TARGET, couples_rows
from baechi.split.spec import Layers
from baechi.units import format_bytes
from baechi.verbs.applying import applied, located
from baechi.verbs.given import Optimizer, Outputs, instance_of, name_of, with_outputs
from baechi.verbs.pipeline.asked import Number, Splitting
from baechi.verbs.pipeline.returned import told_of_returned
from baechi.verbs.pipelining import pipeline as ordered
from baechi.verbs.planning import Placer, place, with_optimizer
from baechi.verbs.split.verb import placed_as_split

logger = logging.getLogger(__name__)

_NUMBERS = (1, 2, 4, 8, 16, 32)
"""What "auto" tries, as far as the batch has rows."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

_DRY_RUNS = 3
_ROOM = 0.9
"""A plan whose simulated peaks err high, and leave this much room, needs no dry run to fit.

Where the backward of weights is apart, what comes to products inside of a layer is estimated.
"""


@dataclass(frozen=True)
class PipelineRequest:
    """What `distribute` was asked for; kept until the first call if there are no inputs yet.

    Args:
        cluster: the devices, which are here.
        splitting: how the step is split.
        profile_with: profiles a model with these examples.
        placer: who places.
        effort: how long `"auto"` searches.
        device_map: the placement, if it is made by hand.
        recompute: the modules that run again in backward.
        optimizer: the optimizer, or its name.
        compile: what `torch.compile` is given for the repeated blocks; None compiles none.
        layers: which layers are split; None for none.
        verify: whether a dry run decides if the plan fits.
        verbose: whether to show progress.
    """

    cluster: Cluster
    splitting: Splitting
    profile_with: Callable[..., LayerGraph]
    placer: Placer
    effort: Effort
    device_map: DeviceMap | None
    recompute: Recompute
    optimizer: Optimizer
    compile: Mapping[str, Any] | None
    layers: Layers | None
    verify: bool
    verbose: bool | None


def here(pipeline: Pipeline, cluster: Cluster | str | Path | None, outputs: Outputs | None) -> Pipeline:
    """A pipeline on devices that are here.

    Args:
        pipeline: it may have been made for devices elsewhere.
        cluster: the devices, as `assign` takes them.
        outputs: where outputs go, as `assign` takes it.
    """
    found = None if cluster is None else located(Cluster.parse(cluster))
    plan = applied(with_outputs(pipeline.plan, outputs), found)
    known = plan.cluster.names == pipeline.plan.cluster.names
    return replace(pipeline, plan=plan, limits={}, unsplit=pipeline.unsplit if known else None)


def fulfil_pipeline(request: PipelineRequest, model: nn.Module, inputs: Inputs) -> None:
    """Profile a part of the batch, place and order, and assign.

    Args:
        request: how.
        model: the model.
        inputs: what it is called with, a whole batch.

    Raises:
        BaechiError: see `distribute`.
        ValueError: the batch cannot be split.
    """
    with verbosity(request.verbose), blocks_compiled(model, request.compile):
        pipeline = _chosen(request, model, inputs, request.splitting.microbatches)
        assign_pipeline(model, pipeline, request.splitting, request.optimizer)
        if request.splitting.microbatches == "auto" and (how := couples_rows(model, inputs)):
            logger.warning("microbatches='auto' is one, not split, since rows are coupled: %s", how)
            restore(model)
            pipeline = _chosen(request, model, inputs, 1)
            assign_pipeline(model, pipeline, request.splitting, request.optimizer)
        say(lambda: summary(pipeline.plan) if pipeline.microbatches == 1 else pipeline_summary(pipeline))


def assign_pipeline(
    model: nn.Module, pipeline: Pipeline, splitting: Splitting, optimizer: Optimizer
) -> nn.Module:
    """Distribute a model, with its step in microbatches.

    Args:
        model: the model.
        pipeline: the devices of its layers, and the order of the tasks.
        splitting: what the loss is, and counts.
        optimizer: an optimizer made before moves its state.

    Returns:
        The same model.
    """
    split = pipeline.microbatches > 1 or splitting.loss is not None
    microbatches = splitting.microbatches_of(pipeline) if split else None
    if split:
        _tell_norms(model)
    trained = instance_of(optimizer)
    assign(model, pipeline.plan, reorder=not split, optimizer=trained, microbatches=microbatches)
    return tell_uncompiled(model)


def _chosen(request: PipelineRequest, model: nn.Module, inputs: Inputs, number: Number) -> Pipeline:
    rows = rows_of(model, _without_target(request, inputs), request.splitting.split or {})
    numbers = [number] if number != "auto" else [n for n in _NUMBERS if n <= max(1, rows or 1)]
    parts = {n: parted(model, inputs, n, request.splitting.split or {}) for n in numbers}
    graphs = {n: _graph(request, model, part, n) for n, part in parts.items()}
    fitting = partial(_fitting, request, model, inputs, number)
    return placed_as_split(graphs, request.layers, request.cluster, fitting)


def _fitting(
    request: PipelineRequest,
    model: nn.Module,
    inputs: Inputs,
    number: Number,
    graphs: Mapping[int, LayerGraph],
) -> Pipeline:
    """A pipeline that fits: place, run dry, and again with what was too little."""
    budget = request.cluster
    for left in reversed(range(_DRY_RUNS)):
        pipeline = _placed(request, graphs, budget, number)
        if not request.verify or pipeline.microbatches == 1:
            return pipeline
        excess = _excess(request, model, inputs, pipeline)
        if not excess:
            return pipeline
        if left:
            budget = resized(budget, {name: -size for name, size in excess.items()})
    short = ", ".join(f"{name} by {format_bytes(size)}" for name, size in excess.items())
    returned = told_of_returned(pipeline.plan.graph) if request.splitting.loss is None else ""
    raise PlacementError(
        f"a dry run of {pipeline.microbatches} microbatches needs more memory than there is on {short}: use "
        f"larger devices, more microbatches{recompute_helps(pipeline.plan.graph)}, or a smaller batch"
        f"{returned}",
        short_bytes=excess,
    )


def _placed(
    request: PipelineRequest, graphs: Mapping[int, LayerGraph], budget: Cluster, number: Number
) -> Pipeline:
    splitting = request.splitting
    if request.device_map is not None:
        return _by_hand(request, graphs)
    made = place(
        graphs,
        budget,
        request.placer,
        microbatches=number,
        optimizer=name_of(request.optimizer),
        effort=request.effort,
        recompute=request.recompute,
    )
    unsplit = made.unsplit and replace(made.unsplit, cluster=request.cluster)
    made = replace(made, plan=replace(made.plan, cluster=request.cluster))
    if splitting.order != "auto" and made.microbatches > 1:
        made = ordered(made.plan, made.microbatches, splitting.order)
    return replace(made, split=dict(splitting.split or {}), unsplit=unsplit)


def _by_hand(request: PipelineRequest, graphs: Mapping[int, LayerGraph]) -> Pipeline:
    """The fastest pipeline of a placement that was made by hand."""
    assert request.device_map is not None
    splitting, device_map, recompute = request.splitting, request.device_map, request.recompute
    if recompute == "auto":
        raise ValueError("recompute='auto' places microbatches itself: with a device_map, name the modules")

    def place_on(graph: LayerGraph, cluster: Cluster) -> Plan:
        if recompute is not None:
            graph = recomputed(graph, modules_named(graph, recompute), together=False)
        return Plan.from_device_map(with_optimizer(graph, name_of(request.optimizer)), cluster, device_map)

    made = [
        ordered(place_on(graph, request.cluster), number, splitting.order, split=dict(splitting.split or {}))
        for number, graph in graphs.items()
    ]
    best = min(made, key=lambda one: (one.timeline.makespan_s, one.microbatches))
    return with_unsplit(best, graphs, request.cluster, place_on)


def _excess(request: PipelineRequest, model: nn.Module, inputs: Inputs, pipeline: Pipeline) -> dict[str, int]:
    """By device, how many bytes a dry run of the pipeline needs more than there are."""
    devices = pipeline.plan.cluster.devices
    peaks = pipeline.timeline.peak_bytes
    # outputs that a loss takes in parts are joined where the model returns them, which only a dry run sees
    errs_high = not pipeline.units.weights_of and not pipeline.plan.graph.says("tile")
    if errs_high and all(peaks[device.name] <= _ROOM * device.memory_bytes for device in devices):
        return {}
    microbatches = Microbatches(pipeline, request.splitting.loss, Told("rows"))
    optimizer = request.optimizer
    try:
        with progress("running dry"):
            dry = dry_run(
                model, inputs, pipeline.plan, optimizer=optimizer, reorder=False, microbatches=microbatches
            )
    except DryRunError as error:
        logger.info("the figures of this plan are estimates: %s", error)
        return {}
    return excess_over(devices, dry.peak_bytes)


def _graph(request: PipelineRequest, model: nn.Module, parts: Parted, number: int) -> LayerGraph:
    """The layer graph of the largest part."""
    try:
        graph = request.profile_with(model, examples=[_without_target(request, parts.parts[0])])
    except CaptureError as error:
        if number > 1:
            note(
                error,
                f"it was given the first {parts.rows[0]} rows of {', '.join(parts.divided)}; "
                f"split={{{parts.divided[-1]!r}: None}} gives every microbatch the whole of an input",
            )
        raise
    graph.graph["microbatches"] = number
    return graph


def _without_target(request: PipelineRequest, inputs: Inputs) -> Inputs:
    if request.splitting.loss is None:
        return inputs
    return Inputs(*inputs.args, **{key: value for key, value in inputs.kwargs.items() if key != TARGET})


def _tell_norms(model: nn.Module) -> None:
    norms = [
        name for name, module in model.named_modules() if isinstance(module, _BATCH_NORMS) and module.training
    ]
    if norms:
        logger.warning(
            "batch norm takes its statistics from each microbatch, as in a loop over parts: %s",
            ", ".join(norms[:3]) + (f" and {len(norms) - 3} more" if len(norms) > 3 else ""),
        )
