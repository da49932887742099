"""Whether the layers of a plan launch in its order, or as the model's code reaches them."""

from dataclasses import replace
from typing import Literal

from baechi.records.plan import Plan
from baechi.run.runtime import Reorder
from baechi.simulate import simulate

ReorderLike = Reorder | Literal["auto"]
"""What `reorder=` takes."""


def decided(reorder: ReorderLike, plan: Plan) -> Reorder:
    """Whether layers launch in a plan's order: as asked, or by itself where that makes a shorter step.

    The host's time to let layers wait counts. Where the code's order does not fit, the plan's is kept.
    """
    if reorder != "auto":
        return reorder
    places = {node: place for place, node in enumerate(plan.graph.code_order())}
    in_code = tuple(sorted(plan.order, key=places.__getitem__))
    if in_code == plan.order or len(plan.devices_used) < 2:
        return False
    as_planned, as_written = simulate(plan), simulate(replace(plan, order=in_code))
    fits = all(as_written.peak_bytes[one.name] <= one.memory_bytes for one in plan.cluster.devices)
    return not fits or as_written.makespan_s > as_planned.makespan_s
