"""What the runs and stages of a pipeline take of memory: one microbatch's step, counted as any step's.

The ledgers of `simulate.memory` go through the code of one microbatch, then backward stage by stage. What
they count in a task is what that task takes for every microbatch, whatever runs between:

    weights, optimizer state     always
    gradients of weights         from a stage's first backward on: they wait until `backward()`
    gradients that a stage gets  until its backward is over: autograd's engine holds what it begins with
    gradients that it sends      leave when its backward is over
    copies and outputs           as in any step: until the code's last reader, or the backward that needs them

What another stream has used comes back late: see `memory`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from baechi.records.pipeline import Units
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.memory.event_memory import stepping_bytes
from baechi.simulate.pipeline.counting.apart import new_gradient_bytes
from baechi.simulate.pipeline.counting.notes import Changes
from baechi.simulate.pipeline.counting.rehearsal import Rehearsal, staying_bytes


@dataclass(frozen=True)
class UnitBytes:
    """Bytes by device, by run and by stage.

    Args:
        always: by device, what is there all the time.
        stepping: by device, what is there while the optimizer steps.
        forward: by run.
        backward: by stage.
        first_backward: the same for the first microbatch, whose gradients of weights are new.
        gradients: by stage, what its first backward leaves.
        returned: by device, `(bytes, of which are kept)` that a microbatch returns: they stay until all are
            joined.
    """

    always: list[int]
    stepping: list[int]
    forward: list[Changes]
    backward: list[Changes]
    first_backward: list[Changes]
    gradients: list[int]
    returned: list[tuple[int, int]]


def bytes_of(
    plan: IndexedPlan, units: Units, run_of: Sequence[int], weights_part: Sequence[float]
) -> UnitBytes:
    """Count the bytes of one microbatch."""
    always = [0] * len(plan.cluster)
    for layer, part in enumerate(plan.footprints):
        always[plan.device_of[layer]] += part.always_bytes
    returned, kept = [0] * len(plan.cluster), [0] * len(plan.cluster)
    for one in plan.indexed.returned:
        returned[plan.device_of[one.maker]] += one.size_bytes
    notes = Rehearsal(plan, units, run_of, weights_part).notes
    if plan.graph.training:
        for layer, costs in enumerate(plan.indexed.costs):
            kept[plan.device_of[layer]] += staying_bytes(costs)
    else:  # what nothing has released
        kept = [notes.left(device) for device in range(len(plan.cluster))]
    first = [notes.changes(("backward", stage), new=True) for stage in range(len(units.device_of))]
    return UnitBytes(
        always,
        stepping_bytes(plan),
        [notes.changes(("forward", run)) for run in range(len(units.stage_of_run))],
        [notes.changes(("backward", stage)) for stage in range(len(units.device_of))],
        first,
        gradients_of(plan, units, run_of),
        list(zip(returned, kept, strict=True)),
    )


def gradients_of(plan: IndexedPlan, units: Units, run_of: Sequence[int]) -> list[int]:
    """By stage, the bytes of gradients of weights that its first backward leaves."""
    gradients = [0] * len(units.device_of)
    for layer, run in enumerate(run_of if plan.graph.training else ()):
        if run >= 0:
            gradients[units.stage_of_run[run]] += new_gradient_bytes(plan.indexed.costs[layer])
    return gradients
