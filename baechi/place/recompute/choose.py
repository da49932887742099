"""Placing with modules that run again in backward: those that a user names, or as few as are needed.

                             ┌─ fits ──▶ compared with one device, where the plan has several
place without ──▶ does it fit?
                             └─ no ────▶ for each set of candidates, bisect: how many of them make it fit
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from baechi.cost.recompute import recomputed
from baechi.errors import PlacementError
from baechi.place.recompute.candidates import Candidate, candidate_sets
from baechi.place.recompute.names import modules_named
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan

Recompute = Literal["auto"] | str | Iterable[str] | None
"""Modules that run again in backward: by name, or as few as needed."""

Place = Callable[[LayerGraph], Plan]

WORTH = 0.99
"""A plan has to be this much faster to be taken for one in which nothing runs again."""


def placed_with(
    graph: LayerGraph,
    recompute: Recompute,
    place: Place,
    *,
    quick: Place,
    alone: Place | None = None,
    together: bool = True,
) -> Plan:
    """Place a graph, with modules that run again."""
    if recompute is None or (recompute == "auto" and not graph.training):
        return place(graph)
    if recompute != "auto":
        return place(recomputed(graph, modules_named(graph, recompute), together=together))
    try:
        plan = place(graph)
    except PlacementError as error:
        return _least(graph, place, quick, error)
    if alone is None or len(plan.devices_used) < 2:
        return plan
    others = [_fewest(graph, chosen, alone) for chosen in candidate_sets(graph)]
    fitting = [other for other in others if other is not None]
    fastest = min(fitting, key=lambda other: other.timeline.makespan_s, default=plan)
    return fastest if fastest.timeline.makespan_s < WORTH * plan.timeline.makespan_s else plan


def _least(graph: LayerGraph, place: Place, quick: Place, refused: PlacementError) -> Plan:
    """The fastest plan among those with as few modules as needed of each set of candidates."""
    found, sets = [], candidate_sets(graph)
    for chosen in sets:
        plan = _fewest(graph, chosen, quick)
        if plan is not None:
            found.append(plan)
    if not found:
        raise _still_refused(graph, sets, quick, refused)
    best = min(found, key=lambda plan: plan.timeline.makespan_s)
    try:
        plan = place(best.graph)
    except PlacementError:
        return best
    return min(plan, best, key=lambda one: one.timeline.makespan_s)


def _still_refused(
    graph: LayerGraph, sets: Sequence[Sequence[Candidate]], quick: Place, refused: PlacementError
) -> PlacementError:
    """The error if nothing helps: that of the set of modules that saves most."""
    if not sets:
        return refused
    try:
        quick(recomputed(graph, [one.name for one in sets[0]]))
    except PlacementError as error:
        what = f"{error}\nThis counts that backward runs {len(sets[0])} modules again (recompute='auto')."
        return PlacementError(what, layer=error.layer, short_bytes=error.short_bytes)
    return refused


def _fewest(graph: LayerGraph, chosen: Sequence[Candidate], place: Place) -> Plan | None:
    """A plan with as few of some candidates, in their order, as bisection finds; None if all do not help."""
    plan = _with_first(graph, chosen, len(chosen), place)
    too_few, enough = 0, len(chosen)
    while plan is not None and enough - too_few > 1:
        middle = (too_few + enough) // 2
        other = _with_first(graph, chosen, middle, place)
        if other is None:
            too_few = middle
        else:
            plan, enough = other, middle
    return plan


def _with_first(graph: LayerGraph, chosen: Sequence[Candidate], number: int, place: Place) -> Plan | None:
    try:
        return place(recomputed(graph, sorted([one.name for one in chosen[:number]])))
    except PlacementError:
        return None
