"""What the runs and stages of a pipeline take of memory, from the footprints of their layers.

A run takes at its start what its layers need at most while they follow each other. At its end it keeps what
autograd saves, and outputs that later runs read. A stage takes in backward what its layers need in reverse,
and gives back what autograd saved. All is by microbatch, but for what stays:

    weights, optimizer state     always
    gradients of the step before always: `zero_grad()` may come after the call that runs the whole schedule
    gradients of this step       from a stage's first backward on: they wait until `backward()`
    one gradient more            while a later microbatch's is added to them
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from baechi.cost.memory import Footprint, update_peak_bytes
from baechi.records.layer_costs import LayerCosts
from baechi.records.pipeline import Units
from baechi.simulate.indexed_plan import IndexedPlan


@dataclass(frozen=True)
class UnitBytes:
    """Bytes by device, by run and by stage.

    Args:
        always: by device, what is there all the time.
        stepping: by device, what is there while the optimizer steps.
        peak: by run, the most that it takes beyond what was there.
        saved: by run, what stays of that until the backward of its stage (without training: until its end).
        passing: by run, `(bytes, last run that reads it)`: outputs that stay until then.
        backward_peak: by stage, the most that its backward takes beyond what was there.
        first_peak: the same for the first microbatch, whose gradients are new.
        gradients: by stage, what its first backward leaves.
    """

    always: list[int]
    stepping: list[int]
    peak: list[int]
    saved: list[int]
    passing: list[list[tuple[int, int]]]
    backward_peak: list[int]
    first_peak: list[int]
    gradients: list[int]


def bytes_of(plan: IndexedPlan, units: Units, run_of: Sequence[int]) -> UnitBytes:
    """Add up the footprints of layers.

    Args:
        plan: the placement, indexed.
        units: its stages and runs.
        run_of: by layer, its run; below 0 on the host.
    """
    layers_of: list[list[int]] = [[] for _ in units.stage_of_run]
    for layer, run in enumerate(run_of):
        if run >= 0:
            layers_of[run].append(layer)
    always, stepping = _standing(plan)
    last_reader = _last_readers(plan, run_of)
    training = plan.graph.training
    sweeps = [_forward(plan, layers, run, last_reader, run_of) for run, layers in enumerate(layers_of)]
    backwards = [
        [
            _backward(plan, [n for run in runs for n in layers_of[run]], run_of, first=first)
            for first in (False, True)
        ]
        for runs in units.runs_of
    ]
    gradients = [0] * len(units.runs_of)
    for run, layers in enumerate(layers_of):
        for layer in layers if training else ():
            gradients[units.stage_of_run[run]] += _new_gradient(plan.indexed.costs[layer])
    return UnitBytes(
        always,
        stepping,
        [peak for peak, _, _ in sweeps],
        [saved for _, saved, _ in sweeps],
        [passing for _, _, passing in sweeps],
        [later for later, _ in backwards],
        [first for _, first in backwards],
        gradients,
    )


def _new_gradient(costs: LayerCosts) -> int:
    coming = costs.backward_grad_bytes
    return ceil(costs.grad_bytes if coming is None else coming)


def _standing(plan: IndexedPlan) -> tuple[list[int], list[int]]:
    """By device, what is always there, and what is there while the optimizer steps."""
    devices = len(plan.cluster)
    always, resident, total, largest = ([0] * devices for _ in range(4))
    old = plan.graph.training and not plan.graph.graph.get("accumulate")
    for layer, part in enumerate(plan.footprints):
        device = plan.device_of[layer]
        always[device] += part.always_bytes + (_new_gradient(plan.indexed.costs[layer]) if old else 0)
        resident[device] += part.resident_bytes
        total[device] += part.update_bytes
        largest[device] = max(largest[device], part.largest_update_bytes)
    sums = zip(resident, total, largest, strict=True)
    return always, [there + update_peak_bytes(*pair) for there, *pair in sums]


def _last_readers(plan: IndexedPlan, run_of: Sequence[int]) -> list[int]:
    """By layer, the last layer that reads its output, by views too; -1 if it is returned."""
    indexed = plan.indexed
    last = [-1] * len(run_of)
    for layer in reversed(range(len(run_of))):
        for tensor in indexed.makes[layer]:
            for reader in indexed.consumers[tensor]:
                until = max(reader, last[reader]) if indexed.is_view[reader] else reader
                last[layer] = max(last[layer], until)
    return last


def _forward(
    plan: IndexedPlan, layers: Sequence[int], run: int, last: Sequence[int], run_of: Sequence[int]
) -> tuple[int, int, list[tuple[int, int]]]:
    """The peak of a run, what it keeps for autograd, and its outputs with their last runs."""
    now = peak = saved = 0
    passing: dict[int, int] = {}
    ending: dict[int, int] = {}
    for layer in layers:
        part: Footprint = plan.footprints[layer]
        now += part.saved_bytes + part.output_bytes
        saved += part.saved_bytes
        peak = max(peak, now + plan.temp_bytes[layer])
        reader = last[layer]
        if part.output_bytes and reader >= 0 and run_of[reader] == run:
            ending[reader] = ending.get(reader, 0) + part.output_bytes
        elif part.output_bytes and reader < 0:  # what the model returns stays as what autograd saves
            saved += part.output_bytes
        elif part.output_bytes:
            passing[run_of[reader]] = passing.get(run_of[reader], 0) + part.output_bytes
        now -= ending.pop(layer, 0)
    return peak, saved, [(size, until) for until, size in passing.items()]


def _backward(plan: IndexedPlan, layers: Sequence[int], run_of: Sequence[int], *, first: bool) -> int:
    """The most that a stage's backward adds, while it gives back what autograd saved."""
    if not plan.graph.training:
        return 0
    indexed, now, peak = plan.indexed, 0, 0
    for layer in reversed(layers):
        part, costs = plan.footprints[layer], indexed.costs[layer]
        received = sum(
            [
                indexed.size_bytes[tensor]
                for tensor in indexed.makes[layer]
                if any([plan.device_of[reader] != plan.device_of[layer] for reader in indexed.graded[tensor]])
            ]
        )
        new = _new_gradient(costs)
        now += new if first else 0
        largest = costs.largest_grad_bytes
        adding = 0 if first else min(new, new if largest is None else ceil(largest))
        peak = max(peak, now + part.temp_bytes + max(0, part.upstream_bytes - received) + adding)
        now -= part.saved_bytes
    return peak
