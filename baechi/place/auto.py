"""The best that is found: every placer, orders by bottom level, then local search, by the predicted step.

one device, m-TOPO, m-ETF, m-SCT, chain      each as it is, and with orders by bottom level
    └─ the best two                          improved by local search
          └─ the best of all                 the first of several equals; so one device wins
                                             unless more are faster
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from baechi.errors import PlacementError
from baechi.place.exact import exact
from baechi.place.search import Found, Rehearsal, Search, evaluate
from baechi.place.task import Task
from baechi.records import Candidate, Cluster, LayerGraph, Plan

TRIED = ("single", "m-topo", "m-etf", "m-sct", "chain")

STARTS = 2
"""How many of the best candidates are improved."""

SIMULATIONS = 400
"""At effort 1, for up to 300 layers; for more layers fewer, so that it takes about as long."""

LAYERS = 300

FEW_PLACEMENTS = 2_000
"""Where there are so few, every plan is tried, if that takes no longer than a search."""

_PATIENCE = 4
"""A part of the simulations that may gain nothing before the search gives up."""

Effort = int | Literal["max"]


@dataclass(frozen=True)
class Try:
    """A candidate.

    Args:
        name: who made it.
        found: where its layers lie, and what it takes.
    """

    name: str
    found: Found


def best(
    graph: LayerGraph,
    cluster: Cluster,
    place: Callable[[str], Plan],
    rehearse: Rehearsal,
    *,
    effort: Effort = 1,
    enough_s: float = 0.0,
) -> Plan:
    """Try the placers, improve the best, and take the plan with the shortest predicted step.

    Args:
        graph: the layer graph.
        cluster: the devices.
        place: makes the plan of the placer with that name, one that keeps memory.
        rehearse: predicts the step of a placement.
        effort: how long to search, in units of the default; 0 not at all, `"max"` until nothing improves.
        enough_s: a step that no plan can beat.

    Returns:
        The best plan, with every candidate's predicted step and peaks.

    Raises:
        PlacementError: no placer found a placement; the last one's.
    """
    task = Task(graph, cluster)
    tries: list[Try] = []
    candidates: list[Candidate] = []
    failed: PlacementError | None = None
    for name in TRIED:
        try:
            plan = place(name)
        except PlacementError as error:
            failed = error
            candidates.append(Candidate(name, note=str(error).split("\n")[0]))
            continue
        tries += _tries(task, rehearse, plan, name)
    if not tries:
        assert failed is not None
        raise failed
    if effort and len(cluster) ** len(task.indexed.members) <= FEW_PLACEMENTS:
        tries += _the_best(task, rehearse, _budget(len(task.indexed), effort)[0], enough_s)
    for start in sorted(tries, key=lambda one: one.found.step_s)[: STARTS if effort else 0]:
        search = Search(task, rehearse, start.found)
        most, patience = _budget(len(task.indexed), effort)
        found = search.run(most, patience, enough_s)
        if found.step_s < start.found.step_s:
            tries.append(Try(f"{start.name} + search", found))
    chosen = min(tries, key=lambda one: one.found.step_s)
    names = cluster.names
    candidates += [
        Candidate(one.name, one.found.step_s, dict(zip(names, one.found.peak_bytes, strict=True)))
        for one in tries
    ]
    plan = task.plan(f"auto ({chosen.name})", chosen.found.device_of, chosen.found.order)
    return replace(plan, candidates=tuple(candidates))


def check_effort(effort: object) -> None:
    """Refuse what is no effort.

    Args:
        effort: what somebody gave.

    Raises:
        ValueError: it is neither a whole number of at least 0 nor `"max"`.
    """
    whole = isinstance(effort, int) and not isinstance(effort, bool)
    if effort != "max" and not (whole and effort >= 0):  # type: ignore[operator]
        raise ValueError(f"effort is {effort!r}: it is a whole number of at least 0, or 'max'")


def _the_best(task: Task, rehearse: Rehearsal, most: int, enough_s: float) -> list[Try]:
    """The best plan there is, if it is found in so many simulations."""
    try:
        return [Try("exact", exact(task, rehearse, enough_s=enough_s, most=most))]
    except (PlacementError, ValueError):
        return []


def _tries(task: Task, rehearse: Rehearsal, plan: Plan, name: str) -> list[Try]:
    """A plan as it is, and with orders by bottom level."""
    indexed, devices = task.indexed, {name: number for number, name in enumerate(plan.cluster.names)}
    index = {layer: number for number, layer in enumerate(indexed.names)}
    device_of = [devices[plan.device_of[indexed.names[members[0]]]] for members in indexed.members]
    order, timeline = (
        tuple([index[layer] for layer in plan.order]),
        plan.timeline,
    )  # it was simulated to be kept
    peaks = tuple([timeline.peak_bytes[device] for device in plan.cluster.names])
    own = Found(tuple(device_of), order, timeline.makespan_s, peaks)
    tries = [Try(name, own)]
    if name != "single":
        ordered = evaluate(task, rehearse, device_of)
        if ordered is not None and ordered.step_s < own.step_s:
            tries.append(Try(f"{name} + bottom level", ordered))
    return tries


def _budget(layers: int, effort: Effort) -> tuple[int, int]:
    """How many simulations, and how many of them in a row may gain nothing."""
    each = max(1, SIMULATIONS * LAYERS // max(layers, LAYERS))
    if effort == "max":
        return 10**9, 20 * layers
    return each * effort, max(1, each * effort // _PATIENCE)
