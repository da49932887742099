"""From a graph to a pipeline: placed for the pipelined step, and ordered. Nothing here needs torch."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import ceil
from typing import Literal

from baechi.errors import PlacementError
from baechi.gc_pause import uncollected
from baechi.place.evaluation import Effort
from baechi.place.fullness import recompute_helps
from baechi.place.pipeline import Found, Verdict, balanced, cuts, outlook_s, searched
from baechi.place.problem import Problem
from baechi.progress import progress
from baechi.records.cluster import Cluster
from baechi.records.device import excess_over, shortage
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline, units_of
from baechi.records.pipeline.pipeline import KeptSplit
from baechi.records.plan import Plan
from baechi.simulate import shortest_step_s
from baechi.simulate.pipeline import (
    OrderLike,
    PipelineCoster,
    QuickStep,
    all_tried,
    best_of,
    costs_of,
    fastest_of,
    improved,
    ordered,
    pipeline_of,
    recorded,
    shortest_pipeline_s,
)
from baechi.units import format_bytes
from baechi.verbs.given import PlanLike, check_microbatches, read_plan

MOST_NUMBERS = 16
"""So many numbers of microbatches are tried at most."""

_SEARCHED_NUMBERS = 3
"""For so many of them, the best by their cuts, placements are searched."""

_WORK, _MOST_EVALUATIONS = 60_000, 150
"""How many placements a search judges: this divided by nodes and tasks, and no more than that."""

_KEPT = 2
"""So many placements are ordered."""

_BALANCED = 3
"""So many of the best cuts have their work balanced, and all that use as many devices as the best."""

_MOST_OFFERED = 4000
"""If a step has more tasks, its backward of weights apart is not tried unasked."""

_JOINED = 2
"""Results are there twice while they are joined."""

_MOST_EFFORT = 10
"""What effort "max" means."""

PlaceOne = Callable[[LayerGraph], Plan]
"""Places a graph for a step without microbatches."""


def pipeline(
    plan: PlanLike,
    microbatches: int,
    order: OrderLike = "auto",
    *,
    limits: Mapping[str, int] | None = None,
    split: Mapping[str, KeptSplit] | None = None,
) -> Pipeline:
    """Order the microbatches of a step on a plan's devices.

    Args:
        plan: the plan, or the path of its file; its graph has the costs of one microbatch.
        microbatches: how many.
        order: `"auto"` simulates many and takes the fastest that fits; `"gpipe"`, `"1f1b"` or
            `"interleaved"`; a list of tasks for the host; or lists of tasks by device.
        limits: by device's name, the most microbatches in flight.
        split: by input's name, the dimension that is split, `"items"` if items of lists are rows, or None for
            an input that goes whole.

    Returns:
        A pipeline, checked; `timeline` predicts its step.

    Raises:
        PlanError: the order cannot run (both positions are named), or breaks a limit.
        ValueError: no order has that name, or the plan's graph is of another number of microbatches.
    """
    check_microbatches(microbatches)
    placed = read_plan(plan)
    _check_graph(placed.graph, microbatches)
    return ordered(placed, microbatches, order, limits=limits, split=split)


def graphs_of(
    graph: LayerGraph | Mapping[int, LayerGraph], microbatches: int | Literal["auto"]
) -> dict[int, LayerGraph]:
    """The graphs of one microbatch, by the number of microbatches."""
    numbers = [microbatches] if isinstance(graph, LayerGraph) else list(graph)
    if microbatches == "auto" and isinstance(graph, LayerGraph):
        raise ValueError(
            "microbatches='auto' compares several numbers, and a graph has the costs of one: give "
            "{1: profile(model, batch), 8: profile(model, batch, microbatches=8)}"
        )
    if not all([isinstance(number, int) and number >= 1 for number in numbers]):
        raise ValueError(
            f"microbatches is {', '.join(map(repr, numbers))}: whole numbers of at least 1, or 'auto'"
        )
    for number, one in [(microbatches, graph)] if isinstance(graph, LayerGraph) else graph.items():
        _check_graph(one, number)
    if isinstance(graph, LayerGraph):
        assert isinstance(microbatches, int)
        return {microbatches: graph}
    if microbatches != "auto" and microbatches not in graph:
        raise ValueError(f"there is no graph for {microbatches} microbatches: there are {numbers}")
    if not 1 <= len(graph) <= MOST_NUMBERS:
        raise ValueError(f"{len(graph)} numbers of microbatches are given: give 1 to {MOST_NUMBERS}")
    return dict(graph) if microbatches == "auto" else {microbatches: graph[microbatches]}


def _check_graph(graph: LayerGraph, microbatches: object) -> None:
    if graph.graph.get("microbatches", microbatches) != microbatches:
        raise ValueError(
            f"the graph has the costs of one of {graph.graph['microbatches']} microbatches, "
            f"not of {microbatches}: profile(model, batch, microbatches={microbatches}) gives those"
        )
    if not len(graph):
        raise ValueError("the graph has no layers to run in microbatches: place it without microbatches=")


def pipelined(
    graphs: Mapping[int, LayerGraph],
    cluster: Cluster,
    place_one: PlaceOne,
    *,
    effort: Effort = 1,
    searches: bool = True,
    quick: bool = False,
) -> Pipeline:
    """Place and order a step with the fastest of some numbers of microbatches."""
    times = float(_MOST_EFFORT if effort == "max" else effort)
    numbers = sorted([number for number in graphs if number > 1], reverse=True)
    if searches and len(numbers) > _SEARCHED_NUMBERS:
        cut = {number: placements(graphs[number], cluster, number, 0) for number in numbers}
        known = sorted([(found[0].verdict, number) for number, found in cut.items() if found])
        numbers = sorted([number for _, number in known[:_SEARCHED_NUMBERS]], reverse=True) or numbers[-1:]
    made, refused = list[Pipeline](), list[PlacementError]()
    for number in [*numbers, *([1] if 1 in graphs else [])]:
        graph = graphs[number]
        if made and number == 1 and shortest_step_s(graph, cluster) > min(map(_step_s, made)):
            break  # it cannot be the fastest
        whole = graph.noted(weights_apart=False) if graph.graph.get("weights_apart") else graph
        try:
            with_number = partial(
                _with_number, cluster=cluster, place_one=place_one, effort=times, quick=quick
            )
            one = with_number(whole, microbatches=number, searches=searches)
            made.append(
                one if quick or whole is graph else _or_apart(one, graph, with_number, searches=searches)
            )
        except PlacementError as error:
            refused.append(error)
    if not made:
        raise refused[0]
    best, last = min(made, key=lambda one: (_step_s(one), one.microbatches)), made[-1]
    if times and searches and not any([one.graph.get("weights_apart") for one in graphs.values()]):
        best = _with_apart_offered(best)
    return replace(best, unsplit=last.plan) if last.microbatches == 1 < best.microbatches else best


@uncollected
def _with_number(
    graph: LayerGraph,
    cluster: Cluster,
    microbatches: int,
    place_one: PlaceOne,
    effort: float,
    *,
    searches: bool,
    quick: bool,
    beside: Mapping[str, str] | None = None,
) -> Pipeline:
    if microbatches == 1:
        plan = place_one(graph)
        return Pipeline(plan, 1, tuple(units_of(plan).tasks(1)), "one microbatch")
    if not searches:
        return _within_memory(ordered(place_one(graph), microbatches))
    with progress("placing"):
        found = placements(graph, cluster, microbatches, effort, beside)
        if not found or found[0].verdict.excess_bytes:  # a placement that fits one microbatch at a time
            return _within_memory(ordered(place_one(graph), microbatches))
    with progress("ordering"):
        coster, problem = PipelineCoster(graph, cluster), Problem(graph, cluster)
        costs = [coster(_by_node(problem, coster, one.device_of)) for one in found]
        place, tried = fastest_of(costs, microbatches, quick=quick)
        best = found[place]
        if not quick:
            tried += improved(costs[place], microbatches, tried)
        plan = problem.plan(best.name, best.device_of, range(len(problem.indexed)))
        return _within_memory(pipeline_of(plan, microbatches, best_of(tried), tried))


def _or_apart(
    made: Pipeline, graph: LayerGraph, with_number: Callable[..., Pipeline], *, searches: bool
) -> Pipeline:
    """A step with the backward of weights apart, if that is shorter and fits.

    Its placement is searched anew, beginning at the one that the whole step has, too: its tasks fill what is
    idle, so other cuts are the best.
    """
    if made.microbatches == 1:
        return made
    if searches:
        try:
            apart = with_number(
                graph, microbatches=made.microbatches, searches=True, beside=made.plan.device_of
            )
        except PlacementError:
            return made
    else:
        apart = ordered(replace(made.plan, graph=graph), made.microbatches)
    shorter = apart.timeline.makespan_s < made.timeline.makespan_s
    best = apart if shorter and not _excess_bytes(apart) else made
    return replace(best, tried=(*made.tried, *[one.apart() for one in apart.tried]))


def _with_apart_offered(made: Pipeline) -> Pipeline:
    """The same, with a step with the backward of weights apart among what was tried, if that is shorter.

    Both have the same placement. It is not taken unless asked for: see `docs/design/order.md`.
    """
    graph, number = made.plan.graph, made.microbatches
    if number == 1 or not graph.training or graph.graph.get("recompute"):
        return made
    costs = costs_of(replace(made.plan, graph=graph.noted(weights_apart=True)))
    tasks, known_s = number * len(costs.units.unit_devices), made.timeline.makespan_s
    if not costs.units.weights_of or tasks > _MOST_OFFERED or shortest_pipeline_s(costs, number) >= known_s:
        return made
    offered = best_of(all_tried(costs, number, quick=True, known_s=known_s))
    if offered.step_s >= known_s:
        return made
    found = recorded(offered, made.plan.cluster.names)
    return replace(made, tried=(*made.tried, found.apart()))


def least_step_s(
    clusters: Sequence[Cluster], microbatches: int, graph: LayerGraph, *, searches: bool
) -> float:
    """A time that no order on contiguous cuts can beat, whatever its memory; 0 if none is known."""
    if microbatches == 1 or not searches:
        return shortest_step_s(graph, clusters[0]) if searches else 0.0
    coster, found = PipelineCoster(graph, clusters[0]), dict[tuple[int, ...], float]()
    for cluster in clusters:
        problem = Problem(graph, cluster)
        for _, device_of in cuts(problem, microbatches):
            where = tuple(_by_node(problem, coster, device_of))
            if where not in found:
                found[where] = shortest_pipeline_s(coster(where), microbatches)
    return min(found.values(), default=float("inf"))


def cuts_outlook_s(graph: LayerGraph, cluster: Cluster, microbatches: int, enough_s: float) -> float | None:
    """About how long a pipelined step takes, by few orders of its cuts; None if no cut fits.

    The first cut that is fast enough will do.
    """
    problem, coster = Problem(graph, cluster), PipelineCoster(graph, cluster)
    step, found = QuickStep(coster, microbatches, closed=True), list[float]()
    for _, device_of in cuts(problem, microbatches):
        found.append(step(_by_node(problem, coster, device_of), enough_s)[1])
        if found[-1] <= enough_s:
            break
    return min(found, default=None)


def step_outlook_s(cluster: Cluster, microbatches: int, graph: LayerGraph) -> float | None:
    """About how long a pipelined step takes, by its cuts alone; None if no cut fits."""
    return outlook_s(Problem(graph, cluster), microbatches)


@uncollected
def placements(
    graph: LayerGraph,
    cluster: Cluster,
    microbatches: int,
    effort: float,
    beside: Mapping[str, str] | None = None,
) -> list[Found]:
    """Placements for a pipelined step, the best first; none if no cut fits. One may be known (`beside`)."""
    problem, coster = Problem(graph, cluster), PipelineCoster(graph, cluster)
    step = QuickStep(coster, microbatches)

    def judge(device_of: Sequence[int], at_most_s: float) -> Verdict:
        return Verdict(*step(_by_node(problem, coster, device_of), at_most_s))

    work = len(problem.indexed) + 8 * microbatches * len(cluster)
    evaluations = round(effort * min(_MOST_EVALUATIONS, _WORK / work))
    known = [] if beside is None else [("that of the whole backward", _by_group(problem, beside))]
    judged = searched(problem, judge, chain(known, cuts(problem, microbatches)), 0, keep=None)
    if not evaluations:
        return judged[:_KEPT]
    starts = {one.device_of: one.name for one in judged[:_BALANCED]}
    for place, one in enumerate(judged):
        if place < _BALANCED or len(set(one.device_of)) == len(set(judged[0].device_of)):
            starts.setdefault(balanced(problem, one.device_of), f"{one.name}, balanced")
    named = [(name, where) for where, name in starts.items()]
    found = searched(problem, judge, named, evaluations, keep=_KEPT)
    as_known = [one for one in judged if known and one.device_of == known[0][1] and one not in found]
    return [*found, *as_known]


def _by_group(problem: Problem, device_of: Mapping[str, str]) -> tuple[int, ...]:
    """A placement by layer as one by group."""
    number, indexed = {name: n for n, name in enumerate(problem.cluster.names)}, problem.indexed
    return tuple([number[device_of[indexed.names[group[0]]]] for group in indexed.members])


def _by_node(problem: Problem, coster: PipelineCoster, device_of: Sequence[int]) -> list[int]:
    """A placement by group as one by node in code order."""
    where = {
        name: device_of[group]
        for name, group in zip(problem.indexed.names, problem.indexed.group_of, strict=True)
    }
    return [where[name] for name in coster.placeable.names]


def _step_s(made: Pipeline) -> float:
    return made.timeline.makespan_s


def _excess_bytes(made: Pipeline) -> dict[str, int]:
    """By device, by how many bytes it is too full."""
    return excess_over(made.plan.cluster.devices, made.timeline.peak_bytes)


def _told_of_results(made: Pipeline, excess: Mapping[str, int]) -> str:
    """What else helps where results of all microbatches are a large part of what is too much."""
    held_bytes: Counter[str] = Counter()
    for name, costs in made.graph.placed_costs():
        if costs.returned:
            held_bytes[made.device_of[name]] += ceil(made.microbatches * sum(costs.returned.values()))
    told = [
        f"{format_bytes(held_bytes[name])} of results on {name}"
        for name, size_bytes in excess.items()
        if _JOINED * held_bytes[name] >= size_bytes
    ]
    joined = f"{' and '.join(told)} {'are' if len(told) > 1 else 'is'}"
    return f". {joined} kept and joined: let the model return its loss alone" if told else ""


def _within_memory(made: Pipeline) -> Pipeline:
    excess = _excess_bytes(made)
    if excess:
        raise PlacementError(
            f"{made.microbatches} microbatches need more memory than there is on {shortage(excess)}: use "
            "more or larger devices, more microbatches, a smaller batch"
            f"{recompute_helps(made.plan.graph)}, or a limit in flight{_told_of_results(made, excess)}",
            short_bytes=excess,
        )
    return made
