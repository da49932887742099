"""From a graph to a plan, and from a plan to its timeline: nothing here needs torch."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

from baechi.errors import PlacementError
from baechi.gc_pause import uncollected
from baechi.place import find, fit
from baechi.place.apart import plan_with_ops_apart
from baechi.place.auto import best, check_effort
from baechi.place.evaluation import Effort
from baechi.place.fullness import (
    NO_LIMIT_BYTES,
    excess_bytes,
    recompute_helps,
    resized,
    too_full,
    within_memory,
    without_limits,
)
from baechi.place.problem import Problem
from baechi.place.recompute import Recompute, placed_with
from baechi.place.recompute.pipeline import Makers, pipelined_with
from baechi.place.registry import places_ops, uses_several
from baechi.place.tight.proof import prove
from baechi.progress import progress, verbosity
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.simulate import Rehearsal, shortest_step_s
from baechi.simulate import simulate as run_simulation
from baechi.simulate.pipeline import simulate_pipeline
from baechi.verbs.given import (
    Optimizer,
    PlanLike,
    check_graph,
    name_of,
    opened,
    read_plan,
    refuse_apart_again,
    tell_unused,
)
from baechi.verbs.pipelines import graphs_of, least_step_s, pipelined, step_outlook_s

Placer = str | Callable[[LayerGraph, Cluster], Plan]

_Known = dict[tuple[tuple[tuple[str, str], ...], tuple[str, ...]], Plan]
"""Plans by devices and order: what several placers or budgets lead to is simulated once."""

_TIGHTENINGS = 8
"""Maximum retries. Each places again, with the budget smaller by the excess of the simulated peaks."""

_LOOSENINGS, _LOOSE_TIGHTENINGS = (0.05, 0.15, 0.3, 0.5), 4
"""If a placer finds no placement: fractions to enlarge its budget by, and maximum retries with each."""


@overload
def place(
    graph: LayerGraph,
    cluster: Cluster | str | Path,
    placer: Placer = "auto",
    *,
    microbatches: None = None,
    optimizer: Optimizer = None,
    effort: Effort = 1,
    recompute: Recompute = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    verbose: bool | None = None,
) -> Plan: ...


@overload
def place(
    graph: LayerGraph | Mapping[int, LayerGraph],
    cluster: Cluster | str | Path,
    placer: Placer = "auto",
    *,
    microbatches: int | Literal["auto"],
    optimizer: Optimizer = None,
    effort: Effort = 1,
    recompute: Recompute = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    verbose: bool | None = None,
) -> Pipeline: ...


def place(
    graph: LayerGraph | Mapping[int, LayerGraph],
    cluster: Cluster | str | Path,
    placer: Placer = "auto",
    *,
    microbatches: int | Literal["auto"] | None = None,
    optimizer: Optimizer = None,
    effort: Effort = 1,
    recompute: Recompute = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    verbose: bool | None = None,
) -> Plan | Pipeline:
    """Choose a device and an order for every layer.

    Args:
        graph: the layer graph; with `microbatches`, that of one microbatch (`profile(microbatches=...)`). For
            `"auto"` graphs by number of microbatches, at most 16 of them, such as `{1: whole, 8: eighth}`.
            With the whole batch's among them, the pipeline is compared with a plan for that (`unsplit`).
        cluster: the devices, or text that `Cluster.parse` reads.
        placer: as `distribute` takes it.
        microbatches: into how many parts the batch is split, which are in flight at once; the plan is one for
            that, and comes with its order as a `Pipeline`. `"auto"` takes the fastest of several numbers.
        optimizer: whose state counts, by name or as an object; the graph's own unless given.
        effort: how long `"auto"` searches, counted in estimates (1: about two seconds for 300 layers);
            0 not at all, `"max"` until nothing improves. With 0, placing by memory alone (the fallback of
            all placers) searches a tenth as long.
        recompute: as `distribute` takes it.
        max_memory: as `distribute` takes it.
        verbose: whether to show progress on the standard error; on a terminal only unless given.

    Returns:
        A plan whose simulated peaks fit every device's memory; with `microbatches`, a pipeline.

    Raises:
        PlacementError: no placement was found that fits.
        TypeError: it is not a layer graph.
        ValueError: an unknown placer or optimizer, a negative effort, graphs that do not go with
            `microbatches`, or modules that cannot run again.
    """
    for one in graph.values() if isinstance(graph, Mapping) else [graph]:
        check_graph(one)
    cluster = Cluster.parse(cluster)
    cluster = cluster.with_memory(max_memory) if max_memory is not None else cluster
    name = name_of(optimizer)
    with verbosity(verbose):
        if microbatches is not None:
            check_effort(effort)
            graphs = graphs_of(graph, microbatches)
            if any(one.graph.get("weights_apart") for one in graphs.values()):
                refuse_apart_again(recompute)
            tell_unused(optimizer, training=all([one.training for one in graphs.values()]))
            graphs = {number: with_optimizer(one, name) for number, one in graphs.items()}
            made = pipelined_with(graphs, recompute, _makers(cluster, placer, name), effort)
            whole = graph.get(1) if isinstance(graph, Mapping) else None
            if made.microbatches == 1 or made.unsplit is not None or whole is None:
                return made
            place_on = functools.partial(
                placed, with_optimizer(whole, name), placer=placer, optimizer=name, recompute=recompute
            )
            return replace(made, unsplit=_plan_without_microbatches(place_on, cluster, effort))
        if not isinstance(graph, LayerGraph):
            raise ValueError("several graphs are for microbatches='auto': say so, or give one graph")
        tell_unused(optimizer, training=graph.training)
        try:
            return placed(graph, cluster, placer, name, effort, recompute)
        except PlacementError as error:
            raise error.with_traceback(None) from None  # without the frames of the search


def _plan_without_microbatches(
    place_on: Callable[..., Plan], cluster: Cluster, effort: Effort
) -> Plan | None:
    """The plan of the whole batch. Where none fits, one that takes more memory than there is."""
    for where, how_long in ((cluster, effort), (without_limits(cluster), 0)):
        try:
            return replace(place_on(cluster=where, effort=how_long), cluster=cluster)
        except PlacementError:
            continue
    return None  # not for want of memory


def _makers(cluster: Cluster, placer: Placer, optimizer: str | None) -> Makers:
    both = (cluster, without_limits(cluster))
    quick, roomy = [functools.partial(_pipelined, one, placer, optimizer, quick=True) for one in both]
    by_cuts = functools.partial(_by_cuts, cluster, quick=True) if placer == "auto" else quick
    least_s = functools.partial(least_step_s, both, searches=placer == "auto")
    outlook_s = functools.partial(step_outlook_s, cluster)
    return Makers(functools.partial(quick, quick=False), quick, by_cuts, roomy, least_s, outlook_s)


def placed_by_cuts(
    graph: LayerGraph, cluster: Cluster, microbatches: int, recompute: Recompute, *, quick: bool
) -> Pipeline:
    """Place a pipeline as `place` does with no effort; refuse at once where no contiguous cut fits."""
    by_cuts = functools.partial(_by_cuts, cluster, quick=quick)
    makers = replace(_makers(cluster, "auto", None), within=by_cuts)
    return pipelined_with({microbatches: graph}, recompute, makers, 0)


def _by_cuts(cluster: Cluster, graphs: Mapping[int, LayerGraph], effort: Effort, *, quick: bool) -> Pipeline:
    def no_other(graph: LayerGraph) -> Plan:
        prove(Problem(graph, cluster))
        raise PlacementError(
            f"no contiguous cut keeps the memory of {max(graphs)} microbatches in flight"
            f"{recompute_helps(graph).replace(',', ':', 1)}"
        )

    def alone(graph: LayerGraph) -> Plan:
        return placed(graph, cluster, "auto", None, effort)

    return pipelined(graphs, cluster, no_other if min(graphs) > 1 else alone, effort=effort, quick=quick)


def _pipelined(
    cluster: Cluster,
    placer: Placer,
    optimizer: str | None,
    graphs: Mapping[int, LayerGraph],
    effort: Effort,
    *,
    quick: bool,
) -> Pipeline:
    place_one = functools.partial(placed, cluster=cluster, placer=placer, optimizer=optimizer, effort=effort)
    return pipelined(graphs, cluster, place_one, effort=effort, searches=placer == "auto", quick=quick)


@uncollected
def placed(
    graph: LayerGraph,
    cluster: Cluster,
    placer: Placer,
    optimizer: str | None,
    effort: Effort,
    recompute: Recompute = None,
) -> Plan:
    """Place as `place` does, where its arguments were read before."""
    check_effort(effort)
    one = functools.partial(_placed_by, cluster)
    return placed_with(
        with_optimizer(graph, optimizer),
        recompute,
        functools.partial(one, placer, effort),
        quick=functools.partial(one, placer, 0),
        alone=functools.partial(one, "single", 0),
    )


def _placed_by(cluster: Cluster, placer: Placer, effort: Effort, graph: LayerGraph) -> Plan:
    with progress("placing"):
        if placer != "auto":
            plan = _place_within_memory(graph, cluster, placer, thorough=effort != 0)
            return plan_with_ops_apart(plan, Rehearsal(graph, cluster)) if places_ops(placer) else plan
        place_by = functools.partial(_by_its_rule, graph, cluster, {})
        rehearse, enough_s = Rehearsal(graph, cluster), shortest_step_s(graph, cluster)
        # no step can be shorter than `enough_s`: a plan that reaches it ends the search
        return best(graph, cluster, place_by, rehearse, effort=effort, enough_s=enough_s)


def simulate(plan: PlanLike | Pipeline) -> Timeline:
    """Predict the step of a plan: when each layer runs, what travels, how full each device gets.

    Args:
        plan: the plan or pipeline, or the path of its file; of a pipeline the step of the whole batch.

    Returns:
        The timeline.
    """
    found = opened(plan)
    return simulate_pipeline(found) if isinstance(found, Pipeline) else run_simulation(read_plan(found))


def with_optimizer(graph: LayerGraph, optimizer: str | None) -> LayerGraph:
    """The graph with its optimizer noted on it, so that a plan holds all that its memory depends on."""
    return graph if optimizer is None else graph.noted(optimizer=optimizer)


def _place_within_memory(graph: LayerGraph, cluster: Cluster, placer: Placer, *, thorough: bool) -> Plan:
    """Place by the placer's rule. If one for several devices finds no placement, place by memory alone."""
    try:
        return _by_its_rule(graph, cluster, {}, placer)
    except PlacementError as error:
        if not uses_several(placer):
            raise
        problem = Problem(graph, cluster)
        found = fit(problem, Rehearsal(graph, cluster), thorough=thorough)
        note = f"{str(error).split(chr(10))[0]}: placed by memory alone instead"
        return problem.plan(str(placer), found.device_of, found.order, note)


def _by_its_rule(graph: LayerGraph, cluster: Cluster, known: _Known, placer: Placer) -> Plan:
    """Place by the placer's own rule. If it finds no placement, retry with a larger memory budget.

    The ledger of a placer may count too much or too little memory. The simulator knows when tensors
    live, so its peaks decide whether a plan fits.
    """
    if placer == "single":
        return _on_one_device(graph, cluster)
    make = functools.partial(find(placer), graph)
    try:
        return _tightened(cluster, known, make, cluster, _TIGHTENINGS)
    except PlacementError as error:
        refused = error
    for more in _LOOSENINGS if uses_several(placer) else ():
        budget = resized(cluster, {d.name: round(more * d.memory_bytes) for d in cluster.devices})
        try:
            return _tightened(cluster, known, make, budget, _LOOSE_TIGHTENINGS)
        except PlacementError:
            continue
    raise refused


def _tightened(
    cluster: Cluster, known: _Known, make: Callable[[Cluster], Plan], budget: Cluster, times: int
) -> Plan:
    """Place within a budget. While a simulated peak exceeds a device's memory, reduce that and retry."""
    for _ in range(times):
        plan = make(budget)
        if plan.cluster is not cluster:
            plan = replace(plan, cluster=cluster)
        excess = excess_bytes(known.setdefault((tuple(plan.device_of.items()), plan.order), plan))
        if not excess:
            return plan
        budget = resized(budget, {name: -size for name, size in excess.items()})
    return within_memory(plan)


def _on_one_device(graph: LayerGraph, cluster: Cluster) -> Plan:
    """Place everything on one device: the one with the shortest simulated step among those that hold it."""
    make = find("single")
    try:
        plan = make(graph, cluster)
        if not excess_bytes(plan):
            return plan
    except PlacementError as error:
        refused = error
    else:
        refused = too_full(plan)
    plans = []
    for device in cluster.devices:
        # a budget for which the placer has no choice but this device; the peaks decide whether it fits
        only = resized(
            cluster, {d.name: NO_LIMIT_BYTES if d is device else -d.memory_bytes for d in cluster.devices}
        )
        try:
            plan = replace(make(graph, only), cluster=cluster)
        except PlacementError:
            continue  # a layer is pinned to another device
        if not excess_bytes(plan):
            plans.append(plan)
    if not plans:
        raise refused
    return min(plans, key=lambda plan: plan.timeline.makespan_s)
