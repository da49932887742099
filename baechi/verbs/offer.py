"""What microbatches would gain, offered where a plan for the whole batch was chosen.

    graph of the batch ──its rows divided──▶ graph of one microbatch ──cuts, orders──▶ a step

No capture and no search of placements is needed for that, so it takes about a second at most.
"""

from dataclasses import dataclass
from functools import partial
from math import ceil

from baechi.cost.rows import of_rows
from baechi.errors import PlacementError
from baechi.records.plan import Plan
from baechi.verbs.pipelines import pipelined
from baechi.verbs.plans import placed

_NUMBERS = (8, 4, 2)
"""The first of these that a batch has rows for is tried."""

_ENOUGH = 1.2
"""A step this many times as fast is worth a line."""

_MOST_NODES = 2_000
"""Larger graphs take longer than a line is worth."""


@dataclass(frozen=True)
class Offer:
    """A step in microbatches that is faster.

    Args:
        microbatches: how many.
        step_s: its simulated step.
        gain: how many times as fast it is as the chosen plan's.
    """

    microbatches: int
    step_s: float
    gain: float

    def __str__(self) -> str:
        return f"{self.gain:.1f} times as fast with microbatches={self.microbatches}"


def offer(plan: Plan, rows: int | None) -> Offer | None:
    """Simulate the step of a plan's model in microbatches."""
    number = next((one for one in _NUMBERS if rows is not None and rows >= one), None)
    if rows is None or number is None or len(plan.cluster) < 2 or len(plan.graph) > _MOST_NODES:
        return None
    graph = of_rows(plan.graph, ceil(rows / number) / rows, plan.cluster.devices)
    place_one = partial(placed, cluster=plan.cluster, placer="auto", optimizer=None, effort=0)
    try:
        made = pipelined({number: graph}, plan.cluster, place_one, effort=0)
    except PlacementError:
        return None
    step_s = made.timeline.makespan_s
    gain = plan.timeline.makespan_s / step_s if step_s else 1.0
    return Offer(number, step_s, gain) if gain >= _ENOUGH else None
