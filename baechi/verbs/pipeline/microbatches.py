"""From a model to one whose steps are split into microbatches: what `distribute(microbatches=...)` does.

the batch in m parts ─▶ profile of one ─▶ place, order ─▶ dry run ─▶ assign
         for each m that "auto" tries              beside the plan for the whole batch
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baechi.cost.recompute import recomputed
from baechi.errors import CaptureError, DryRunError, PlacementError, note
from baechi.place.evaluation import Effort
from baechi.place.fullness import excess_bytes, recompute_helps, resized, without_limits
from baechi.place.recompute.names import modules_named
from baechi.progress import progress, say, verbosity
from baechi.records.cluster import Cluster
from baechi.records.device import excess_over, shortage
from baechi.records.device_map import DeviceMap
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.pipeline import Pipeline, units_of
from baechi.records.plan import Plan
from baechi.records.stages import Stages
from baechi.records.timeline import Timeline
from baechi.report.summary import summary
from baechi.run import assign, blocks_compiled, plan_of, restore, tell_uncompiled
from baechi.run.dry.dry_run import dry_run
from baechi.run.pipeline.batch.partition import Parted, parted, rows_of
from baechi.run.pipeline.walk import TARGET, couples_rows, split_that_helps
from baechi.verbs.application import applied, located
from baechi.verbs.given import Optimizer, Outputs, instance_of, with_outputs
from baechi.verbs.pipeline.request import Number, Splitting
from baechi.verbs.pipeline.sharded_outputs import told_of_returned
from baechi.verbs.pipelines import pipeline as ordered
from baechi.verbs.plans import Placer, place, with_optimizer
from baechi.verbs.refusal import refused
from baechi.verbs.reordering import decided
from baechi.verbs.request import Request, planned
from baechi.verbs.split.verb import placed_as_split

logger = logging.getLogger(__name__)

_NUMBERS = (2, 4, 8, 16, 32)
"""What "auto" tries beside one, as far as the batch has rows."""

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
        whole: what is asked for without microbatches; the pipeline is compared with that.
        splitting: how the step is split.
        profile_with: profiles a model with these examples, for microbatches.
        placer: who places.
        effort: how long `"auto"` searches.
    """

    whole: Request
    splitting: Splitting
    profile_with: Callable[..., LayerGraph]
    placer: Placer
    effort: Effort


def here(pipeline: Pipeline, cluster: Cluster | str | Path | None, outputs: Outputs | None) -> Pipeline:
    """A pipeline on devices that are here."""
    found = None if cluster is None else located(Cluster.parse(cluster))
    plan = applied(with_outputs(pipeline.plan, outputs), found)
    known = plan.cluster.names == pipeline.plan.cluster.names
    unsplit, dry = pipeline.unsplit if known else None, pipeline.dry if plan is pipeline.plan else None
    tried = pipeline.tried if known else ()
    return replace(pipeline, plan=plan, limits={}, tried=tried, unsplit=unsplit, dry=dry)


def fulfil_pipeline(request: PipelineRequest, model: nn.Module, inputs: Inputs) -> None:
    """Profile a part of the batch, place and order, and assign."""
    optimizer = request.whole.optimizer
    with verbosity(request.whole.verbose), blocks_compiled(model, request.whole.compile):
        pipeline = chosen(request, model, inputs, request.splitting.microbatches)
        stages = request.whole.stages
        assign_pipeline(model, pipeline, request.splitting, optimizer, stages)
        if request.splitting.microbatches == "auto" and (how := couples_rows(model, inputs)):
            logger.warning("microbatches='auto' is one, not split, since rows are coupled: %s", how)
            restore(model)
            pipeline = chosen(request, model, inputs, 1)
            assign_pipeline(model, pipeline, request.splitting, optimizer, stages)
        say(lambda: summary(plan_of(model)))


def assign_pipeline(
    model: nn.Module,
    pipeline: Pipeline,
    splitting: Splitting,
    optimizer: Optimizer,
    stages: Stages | None = None,
) -> nn.Module:
    """Distribute a model, with its step in microbatches."""
    split = pipeline.microbatches > 1 or splitting.loss is not None
    microbatches = splitting.microbatches_of(pipeline) if split else None
    if split:
        tell_norms(model)
    trained = instance_of(optimizer)
    order = False if split else decided("auto", pipeline.plan)
    given: dict[str, Any] = {"optimizer": trained, "microbatches": microbatches, "stages": stages}
    assign(model, pipeline.plan, reorder=order, **given)
    return tell_uncompiled(model)


def chosen(request: PipelineRequest, model: nn.Module, inputs: Inputs, number: Number) -> Pipeline:
    """The pipeline that is asked for, beside the plan without microbatches; for "auto" the faster one."""
    split = request.splitting.split or {}
    rows = rows_of(model, _without_target(request, inputs), split)
    numbers = [number] if number != "auto" else [n for n in _NUMBERS if n <= max(1, rows or 1)]
    numbers = [n for n in numbers if n > 1]
    if not numbers:
        return _in_one(_whole(request, model, inputs))
    parts = {n: parted(model, inputs, n, split) for n in numbers}
    graphs = {n: _graph(request, model, inputs, part) for n, part in parts.items()}
    fitting = partial(_fitting, request, model, inputs, number)
    made = None
    try:
        made = placed_as_split(graphs, request.whole.layers, request.whole.cluster, fitting)
    except PlacementError as error:
        if number != "auto":
            noted = with_optimizer(graphs[number], request.whole.optimizer_name)
            raise refused(error, model, inputs, request.whole.cluster, noted) from None
    if made is None:
        return _in_one(_whole(request, model, inputs))
    unsplit = _unsplit(request, model, inputs)
    if number == "auto" and unsplit is not None and not excess_bytes(unsplit):
        if unsplit.timeline.makespan_s <= made.timeline.makespan_s:
            return _in_one(unsplit)
    return replace(made, unsplit=unsplit)


def _in_one(plan: Plan) -> Pipeline:
    return Pipeline(plan, 1, tuple(units_of(plan).tasks(1)), "one microbatch")


def _whole(request: PipelineRequest, model: nn.Module, inputs: Inputs) -> Plan:
    """The plan that `distribute` makes without microbatches."""
    examples = [_without_target(request, inputs)]
    return planned(request.whole, model, examples, request.whole.profile_with(model, examples=examples))


def _unsplit(request: PipelineRequest, model: nn.Module, inputs: Inputs) -> Plan | None:
    """The same where it is known. Where none fits, one that takes more memory than there is."""
    whole, examples = request.whole, [_without_target(request, inputs)]
    try:
        graph = whole.profile_with(model, examples=examples)
    except (CaptureError, torch.OutOfMemoryError) as error:
        logger.info("not compared with a plan without microbatches: %s", error)
        return None
    roomy = replace(
        whole,
        cluster=without_limits(whole.cluster),
        place_with=partial(whole.place_with, effort=0),
        layers=whole.layers if isinstance(whole.layers, Mapping) else None,
        verify=False,
    )
    for asked in (whole, roomy):
        try:
            return replace(planned(asked, model, examples, graph), cluster=whole.cluster)
        except PlacementError:
            continue
    return None  # not for want of memory


def _fitting(
    request: PipelineRequest,
    model: nn.Module,
    inputs: Inputs,
    number: Number,
    graphs: Mapping[int, LayerGraph],
) -> Pipeline:
    """A pipeline that fits: place, run dry, and again with what was too little."""
    budget, verify = request.whole.cluster, request.whole.verify
    for left in reversed(range(_DRY_RUNS)):
        pipeline = _placed(request, graphs, budget, number)
        dry = _dry(request, model, inputs, pipeline) if verify else None
        if dry is None:
            return pipeline
        excess = excess_over(pipeline.cluster.devices, dry.peak_bytes)
        if not excess:
            return replace(pipeline, dry=dry)
        if left:
            budget = resized(budget, {name: -size for name, size in excess.items()})
    returned = told_of_returned(pipeline.plan.graph) if request.splitting.loss is None else ""
    raise PlacementError(
        f"a dry run of {pipeline.microbatches} microbatches needs more memory than there is on "
        f"{shortage(excess)}: use larger devices, more microbatches{recompute_helps(pipeline.plan.graph)}, "
        f"or a smaller batch{returned}",
        short_bytes=excess,
    )


def _placed(
    request: PipelineRequest, graphs: Mapping[int, LayerGraph], budget: Cluster, number: Number
) -> Pipeline:
    whole, splitting = request.whole, request.splitting
    if whole.device_map is not None:
        return _by_hand(request, graphs, whole.device_map)
    made = place(
        graphs,
        budget,
        request.placer,
        microbatches=number,
        optimizer=whole.optimizer_name,
        effort=request.effort,
        recompute=whole.recompute,
    )
    made = replace(made, plan=replace(made.plan, cluster=whole.cluster))
    if splitting.order != "auto":
        made = ordered(made.plan, made.microbatches, splitting.order)
    return replace(made, split=splitting.kept_split)


def _by_hand(request: PipelineRequest, graphs: Mapping[int, LayerGraph], device_map: DeviceMap) -> Pipeline:
    """The fastest pipeline of a placement that was made by hand."""
    whole, splitting, recompute = request.whole, request.splitting, request.whole.recompute
    if recompute == "auto":
        raise ValueError("recompute='auto' places microbatches itself: with a device_map, name the modules")
    made = []
    for number, graph in graphs.items():
        if recompute is not None:
            graph = recomputed(graph, modules_named(graph, recompute), together=False)
        noted = with_optimizer(graph, whole.optimizer_name)
        plan = Plan.from_device_map(noted, whole.cluster, device_map)
        made.append(ordered(plan, number, splitting.order, split=splitting.kept_split))
    return min(made, key=lambda one: (one.timeline.makespan_s, one.microbatches))


def _dry(request: PipelineRequest, model: nn.Module, inputs: Inputs, pipeline: Pipeline) -> Timeline | None:
    """The simulated step with the peaks of a dry run; None where that is not needed, or not possible."""
    devices, simulated = pipeline.cluster.devices, pipeline.timeline
    # outputs that a loss takes sharded are joined where the model returns them, which only a dry run sees
    errs_high = not pipeline.units.weights_of and not pipeline.graph.says("shard")
    if errs_high and all(simulated.peak_bytes[one.name] <= _ROOM * one.memory_bytes for one in devices):
        return None
    microbatches = replace(request.splitting, loss_weights="rows").microbatches_of(pipeline)
    optimizer = request.whole.optimizer
    try:
        with progress("running dry"):
            dry = dry_run(
                model, inputs, pipeline.plan, optimizer=optimizer, reorder=False, microbatches=microbatches
            )
    except DryRunError as error:
        logger.info("the figures of this plan are estimates: %s", error)
        return None
    return replace(
        simulated,
        peak_bytes=dry.peak_bytes,
        reserved_bytes=dry.reserved_bytes,
        live_bytes=dry.live_bytes,
        source=dry.source,
    )


def _graph(request: PipelineRequest, model: nn.Module, inputs: Inputs, parts: Parted) -> LayerGraph:
    """The layer graph of the first part, which has most rows."""
    try:
        graph = request.profile_with(model, examples=[_without_target(request, parts.parts[0])])
    except CaptureError as error:
        given = f"it was given the first {parts.rows[0]} rows of {', '.join(parts.divided)}"
        given += f", and the whole of {', '.join(parts.whole)}" if parts.whole else ""
        splitting = request.splitting
        cure = split_that_helps(model, splitting.loss, inputs, parts, splitting.split or {})
        note(
            error,
            f"{given}. {cure}"
            if cure
            else f"{given}: split={{'name': how}} says how an input is divided, if that is wrong. "
            "A model that takes whole batches only is distributed without microbatches",
        )
        raise
    graph.graph["microbatches"] = len(parts.parts)
    return graph


def _without_target(request: PipelineRequest, inputs: Inputs) -> Inputs:
    if request.splitting.loss is None:
        return inputs
    return Inputs(*inputs.args, **{key: value for key, value in inputs.kwargs.items() if key != TARGET})


def tell_norms(model: nn.Module) -> None:
    """Say which batch norms take their statistics from each microbatch."""
    norms = [
        name for name, module in model.named_modules() if isinstance(module, _BATCH_NORMS) and module.training
    ]
    if norms:
        logger.warning(
            "batch norm takes its statistics from each microbatch, as in a loop over parts: %s",
            ", ".join(norms[:3]) + (f" and {len(norms) - 3} more" if len(norms) > 3 else ""),
        )
