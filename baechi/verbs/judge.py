"""The judge: accepts a plan if, in a dry run of it, every device's peak fits its memory.

    place within a budget ──▶ plan ──▶ dry run ──▶ do all peaks fit? ──yes──▶ the plan, with its timeline
           ▲                                               │ no
           └── reduce the budget of each device that is ───┘
               too full, by the bytes it exceeds; where that leaves no plan, of all devices by a quarter of it

A budget is the memory that placers may plan with. They estimate memory, and the estimate errs on the high
side. Where they find no placement, they get a somewhat larger budget, and the dry run decides.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import nn

from baechi.errors import DryRunError, PlacementError
from baechi.place.fullness import excess_bytes, resized, too_full
from baechi.progress import progress
from baechi.records.cluster import Cluster
from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.run.dry.dry_run import dry_run
from baechi.run.dry.loop import Optimizer
from baechi.verbs.reordering import ReorderLike, decided

logger = logging.getLogger(__name__)

_DRY_RUNS = 3
"""Maximum dry runs for one plan."""

_ENLARGED_BY = (0.05, 0.2)
"""If placers find no placement: fractions to enlarge the budget by, tried one after the other."""

PlaceWithin = Callable[[Cluster], Plan]
Run = Callable[[Plan], Timeline]


def runner(
    model: nn.Module, examples: Sequence[Inputs], optimizer: Optimizer, reorder: ReorderLike = "auto"
) -> Run:
    """Make the function that runs plans of a model dry."""

    def run(plan: Plan) -> Timeline:
        order = decided(reorder, plan)
        with progress("running dry"):
            timelines = [
                dry_run(model, inputs, plan, optimizer=optimizer, reorder=order) for inputs in examples
            ]
        peaks = {name: max([one.peak_bytes[name] for one in timelines]) for name in plan.cluster.names}
        reserved = {name: max([one.reserved_bytes[name] for one in timelines]) for name in plan.cluster.names}
        return replace(timelines[0], peak_bytes=peaks, reserved_bytes=reserved)

    return run


def judged(cluster: Cluster, place_within: PlaceWithin, run: Run) -> Plan:
    """Place until a dry run shows that the plan fits."""
    plan, budget, refused = _first_plan(cluster, place_within)
    for retries_left in reversed(range(_DRY_RUNS)):
        plan = replace(plan, cluster=cluster)
        try:
            plan = _with_timeline(plan, run(plan))
        except DryRunError as error:
            logger.info("the figures of this plan are estimates: %s", error)
            # without a dry run, estimates decide: they must fit the memory itself, not a larger budget
            if refused is not None:
                raise refused from error
            return plan
        excess = excess_bytes(plan)
        if not excess:
            return plan
        full, found = plan, _again(cluster, budget, excess, place_within) if retries_left else None
        if found is None:
            break
        plan, budget = found
    raise too_full(full)


def checked(plan: Plan, run: Run) -> Plan:
    """Run a plan that was made by hand dry."""
    try:
        plan = _with_timeline(plan, run(plan))
    except DryRunError as error:
        logger.info("the figures of this plan are estimates: %s", error)
    if excess_bytes(plan):
        raise too_full(plan)
    return plan


def _with_timeline(plan: Plan, dry: Timeline) -> Plan:
    """The plan with the timeline of its dry run; with its memory only, where layers were measured.

    A dry run takes kernel times from datasheets. The simulated step uses the measured ones.
    """
    if plan.graph.graph.get("measured"):
        dry = replace(
            plan.timeline,
            peak_bytes=dry.peak_bytes,
            reserved_bytes=dry.reserved_bytes,
            live_bytes=dry.live_bytes,
        )
    return replace(plan, dry=dry)


def _again(
    cluster: Cluster, budget: Cluster, excess: Mapping[str, int], place_within: PlaceWithin
) -> tuple[Plan, Cluster] | None:
    """Place with less memory on the devices that are too full; if nothing fits, with somewhat less on all."""
    share = max(
        [
            excess[device.name] / max(1, device.memory_bytes)
            for device in cluster.devices
            if device.name in excess
        ]
    )
    on_all = {device.name: -round(device.memory_bytes * share / 4) for device in cluster.devices}
    on_these = {name: -size for name, size in excess.items()}
    for smaller in (resized(budget, on_these), resized(cluster, on_all)):
        try:
            return place_within(smaller), smaller
        except PlacementError:
            continue
    return None


def _first_plan(cluster: Cluster, place_within: PlaceWithin) -> tuple[Plan, Cluster, PlacementError | None]:
    """A plan and its budget: the cluster, or one with enlarged memory, and why the cluster was refused."""
    try:
        return place_within(cluster), cluster, None
    except PlacementError as error:
        refused = error
    total_bytes = sum([device.memory_bytes for device in cluster.devices])
    for more in _ENLARGED_BY:
        if sum(refused.short_bytes.values()) > more * total_bytes:
            continue  # this much more cannot be enough
        budget = resized(cluster, {d.name: round(more * d.memory_bytes) for d in cluster.devices})
        try:
            return place_within(budget), budget, refused
        except PlacementError:
            continue
    raise refused
