"""The best of the placers, by the predicted step; what else was tried stays with the plan."""

from collections.abc import Callable
from dataclasses import replace

from baechi.errors import PlacementError
from baechi.records import Candidate, Plan

TRIED = ("single", "m-topo", "m-etf", "m-sct")
"""In this order; the first of several equals is taken. So one device wins unless more are faster."""


def best(place: Callable[[str], Plan]) -> Plan:
    """Try the placers and take the plan with the shortest predicted step.

    Args:
        place: makes the plan of the placer with that name; its `timeline` predicts the step.

    Returns:
        The best plan, with every candidate's predicted step and peaks.

    Raises:
        PlacementError: no placer found a placement; the last one's.
    """
    plans: list[Plan] = []
    candidates: list[Candidate] = []
    failed: PlacementError | None = None
    for name in TRIED:
        try:
            plan = place(name)
        except PlacementError as error:
            failed = error
            candidates.append(Candidate(name, note=str(error).split("\n")[0]))
            continue
        plans.append(plan)
        timeline = plan.timeline
        candidates.append(Candidate(name, timeline.makespan_s, dict(timeline.peak_bytes)))
    if not plans:
        assert failed is not None
        raise failed
    chosen = min(plans, key=lambda plan: plan.timeline.makespan_s)
    return replace(chosen, placer=f"auto ({chosen.placer})", candidates=tuple(candidates))
