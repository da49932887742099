"""The judge: a plan is taken if a dry run of it keeps every device's memory.

    place within a budget ──▶ plan ──▶ dry run ──▶ its peaks keep the memory ──▶ the plan, with its timeline
           ▲                                                    │ no
           └──── each device that is too full: that much less ──┘

Placers know memory by an estimate that errs on the high side. Where they find no room, they get a somewhat
larger budget, and the dry run decides.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from baechi.errors import DryRunError, PlacementError
from baechi.records.cluster import Cluster
from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run.dry.dry_run import dry_run
from baechi.run.dry.loop import Optimizer
from baechi.run.runtime import Reorder
from baechi.verbs.planning import excess_bytes, resized, too_full

logger = logging.getLogger(__name__)

_DRY_RUNS = 3
"""Maximum dry runs for one plan."""

_LARGER = (0.05, 0.2)
"""Fractions to enlarge the memory by, one after the other, where placers find no room."""

PlaceWithin = Callable[[Cluster], Plan]
Run = Callable[[Plan], Timeline]


def runner(
    model: nn.Module, examples: Sequence[Inputs], optimizer: Optimizer, reorder: Reorder = True
) -> Run:
    """What runs a plan of a model dry.

    Args:
        model: the model.
        examples: arguments of calls; each is run, and the first one gives the timeline.
        optimizer: its name, or an optimizer of the model.
        reorder: as `assign` takes it.

    Returns:
        A function from a plan to its timeline, whose peaks are the highest of all examples.
    """

    def run(plan: Plan) -> Timeline:
        ran = [dry_run(model, inputs, plan, optimizer=optimizer, reorder=reorder) for inputs in examples]
        peaks = {name: max([one.peak_bytes[name] for one in ran]) for name in plan.cluster.names}
        reserved = {name: max([one.reserved_bytes[name] for one in ran]) for name in plan.cluster.names}
        return replace(ran[0], peak_bytes=peaks, reserved_bytes=reserved)

    return run


def judged(cluster: Cluster, place_within: PlaceWithin, run: Run) -> Plan:
    """Place, and let dry runs judge.

    Args:
        cluster: the devices.
        place_within: makes a plan for the devices with the memory that it is given.
        run: runs a plan dry.

    Returns:
        A plan with the timeline of its dry run; with its simulated one if the model does not run dry.

    Raises:
        PlacementError: no plan was found that keeps every device's memory.
    """
    plan, budget = _first_plan(cluster, place_within)
    for left in reversed(range(_DRY_RUNS)):
        plan = replace(plan, cluster=cluster)
        try:
            plan = _with_timeline(plan, run(plan))
        except DryRunError as error:
            logger.info("the figures of this plan are estimates: %s", error)
            return plan if budget is cluster else place_within(cluster)
        excess = excess_bytes(plan)
        if not excess:
            return plan
        full, budget = plan, resized(budget, {name: -size for name, size in excess.items()})
        try:
            plan = place_within(budget) if left else plan
        except PlacementError:
            break
    raise too_full(full)


def checked(plan: Plan, run: Run) -> Plan:
    """A plan that was made by hand, with the timeline of its dry run.

    Args:
        plan: the plan.
        run: runs a plan dry.

    Raises:
        PlacementError: a device is too full.
    """
    try:
        plan = _with_timeline(plan, run(plan))
    except DryRunError as error:
        logger.info("the figures of this plan are estimates: %s", error)
    if excess_bytes(plan):
        raise too_full(plan)
    return plan


def _with_timeline(plan: Plan, ran: Timeline) -> Plan:
    """The plan with the timeline of its dry run. Where layers were measured, their times stand."""
    if plan.graph.graph.get("measured"):
        ran = replace(
            plan.timeline,
            peak_bytes=ran.peak_bytes,
            reserved_bytes=ran.reserved_bytes,
            live_bytes=ran.live_bytes,
        )
    return replace(plan, dry=ran)


def _first_plan(cluster: Cluster, place_within: PlaceWithin) -> tuple[Plan, Cluster]:
    """A plan, and the budget that it was placed within."""
    try:
        return place_within(cluster), cluster
    except PlacementError as error:
        refused = error
    total_bytes = sum([device.memory_bytes for device in cluster.devices])
    for more in _LARGER:
        if sum(refused.short_bytes.values()) > more * total_bytes:
            continue
        budget = resized(cluster, {d.name: round(more * d.memory_bytes) for d in cluster.devices})
        try:
            return place_within(budget), budget
        except PlacementError:
            continue
    raise refused
