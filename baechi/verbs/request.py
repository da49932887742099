"""What `distribute` was asked for, and how it is done: at once, or at the first call."""

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from baechi.errors import PlacementError
from baechi.place.fullness import within_memory
from baechi.place.recompute import Recompute, placed_with
from baechi.progress import say, verbosity
from baechi.records.cluster import Cluster
from baechi.records.device_map import DeviceMap
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.records.stages import Stages
from baechi.report.summary import summary
from baechi.run import assign, blocks_compiled, tell_uncompiled
from baechi.run.pipeline.batch.partition import rows_of
from baechi.run.pipeline.walk import keeps_rows_apart
from baechi.split.spec import Layers
from baechi.verbs.given import Optimizer, instance_of
from baechi.verbs.judge import Run, checked, judged, runner
from baechi.verbs.offer import offer
from baechi.verbs.plans import with_optimizer
from baechi.verbs.refusal import refused
from baechi.verbs.reordering import ReorderLike, decided
from baechi.verbs.split.gain import split_where_it_gains
from baechi.verbs.split.verb import plan_as_split

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What `distribute` was asked for; kept until the first call if there are no inputs yet.

    Args:
        cluster: the devices, which are here.
        profile_with: profiles a model with these examples.
        place_with: places a graph within a cluster.
        device_map: the placement, if it is made by hand.
        recompute: the modules that run again in backward.
        optimizer_name: whose state counts.
        optimizer: the optimizer, or its name.
        reorder: see `distribute`.
        compile: what `torch.compile` is given for the repeated blocks; None compiles none.
        stages: how the whole step is compiled; None runs it as its code is written.
        layers: which layers are split; None for none.
        verify: see `distribute`.
        verbose: see `distribute`.
    """

    cluster: Cluster
    profile_with: Callable[..., LayerGraph]
    place_with: Callable[..., Plan]
    device_map: DeviceMap | None
    recompute: Recompute
    optimizer_name: str | None
    optimizer: Optimizer
    reorder: ReorderLike
    compile: Mapping[str, Any] | None
    stages: Stages | None
    layers: Layers | None
    verify: bool
    verbose: bool | None


def fulfil(request: Request, model: nn.Module, inputs: Inputs | list[Inputs]) -> None:
    """Profile a model, place it, and assign the plan."""
    with verbosity(request.verbose), blocks_compiled(model, request.compile):
        examples = Inputs.each_of(inputs)
        plan = planned(request, model, examples, request.profile_with(model, examples=examples))
        trained, order = instance_of(request.optimizer), decided(request.reorder, plan)
        assign(model, plan, reorder=order, optimizer=trained, stages=request.stages)
        tell_uncompiled(model)
        say(lambda: summary(plan) + _offered(request, plan, model, inputs))
    if logger.isEnabledFor(logging.INFO):  # steps may have to be simulated for it
        logger.info("%s", summary(plan))


def _offered(request: Request, plan: Plan, model: nn.Module, inputs: Inputs | list[Inputs]) -> str:
    """What microbatches would gain; nothing where they cannot run as the plan does, or rows are coupled."""
    examples = Inputs.each_of(inputs)
    if len(examples) > 1 or request.device_map is not None or request.layers is not None:
        return ""
    found = offer(plan, rows_of(model, examples[0], {}))
    return f"; {found}" if found is not None and keeps_rows_apart(model, examples[0]) else ""


def planned(request: Request, model: nn.Module, examples: list[Inputs], graph: LayerGraph) -> Plan:
    """Place a model."""
    try:
        return _planned(request, model, examples, graph)
    except PlacementError as error:
        noted = with_optimizer(graph, request.optimizer_name)
        raise refused(error, model, examples[0], request.cluster, noted) from None


def _planned(request: Request, model: nn.Module, examples: list[Inputs], graph: LayerGraph) -> Plan:
    layers = request.layers
    run = runner(model, examples, request.optimizer, request.reorder)

    def plan_for(graph: LayerGraph) -> Plan:
        if request.device_map is not None:
            by_hand = functools.partial(_by_hand, request, run)
            return placed_with(graph, request.recompute, by_hand, quick=by_hand, together=False)
        place_within = functools.partial(request.place_with, graph)
        return judged(request.cluster, place_within, run) if request.verify else place_within(request.cluster)

    noted = with_optimizer(graph, request.optimizer_name)
    plan = plan_as_split(noted, layers, request.cluster, plan_for)
    if layers != "auto" or request.device_map is not None:
        return plan
    quick = functools.partial(request.place_with, cluster=request.cluster, effort=0)
    judge = functools.partial(checked, run=run)
    return split_where_it_gains(noted, request.cluster, plan, quick, plan_for, judge)


def _by_hand(request: Request, run: Run, graph: LayerGraph) -> Plan:
    assert request.device_map is not None
    plan = Plan.from_device_map(graph, request.cluster, request.device_map)
    return checked(plan, run) if request.verify else within_memory(plan)
