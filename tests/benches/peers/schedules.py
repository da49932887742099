"""Torch's own schedules, action for action, as orders of our tasks: the witness of ours.

    stretches of the model   0 1 2 3 4 5 6 7
    interleaved, devices     0 1 2 3 0 1 2 3       torch's stage is a stretch; F, I, W and B are its actions
    V                        0 1 2 3 3 2 1 0       I and W: backward of inputs and of weights; B: both

Torch makes the actions of a rank without any process: it is given stages that are names only. A stretch may
be several stages and runs here (of branches), and two stretches of a device that follow each other are one.
Then all their tasks go together, at the first action or at the last: whichever is shorter. Where that
contradicts the model's code (an embedding that encoder and decoder share), lists say what goes first.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from torch.distributed.pipelining import schedules as torchs

from baechi.errors import PlanError
from baechi.records.pipeline import Task, Units
from baechi.records.pipeline.merge import merged
from baechi.simulate.pipeline import PipelineCosts, Tried, evaluated
from baechi.simulate.pipeline.list_scheduler import Listed
from baechi.simulate.pipeline.rules import backward_first

Which = Literal["first", "last"]


@dataclass(frozen=True)
class Schedule:
    """A schedule of torch.

    Args:
        name: as the literature has it.
        kind: torch's class.
        stretches: how many each device has.
        apart: whether the backward of weights is apart.
        turns: whether stretches go back the way they came: a V.
    """

    name: str
    kind: type
    stretches: int
    apart: bool = False
    turns: bool = False

    def device_of(self, stretch: int, devices: int) -> int:
        """Which device has a stretch."""
        there, place = divmod(stretch, devices)
        return devices - 1 - place if self.turns and there % 2 else place

    def fits(self, devices: int, microbatches: int) -> bool:
        """Whether torch has it for so many: DualPipe-V takes two microbatches a device at least."""
        return self.kind is not torchs.ScheduleDualPipeV or microbatches >= 2 * devices


INTERLEAVED = tuple(
    [Schedule(f"interleaved, {count} each", torchs.ScheduleInterleaved1F1B, count) for count in (2, 3, 4)]
)
ZERO_BUBBLE = (
    Schedule("ZB-H1", torchs.ScheduleInterleavedZeroBubble, 1, apart=True),
    Schedule("ZB-V", torchs.ScheduleZBVZeroBubble, 2, apart=True, turns=True),
    Schedule("DualPipe-V", torchs.ScheduleDualPipeV, 2, apart=True, turns=True),
)


def priced(schedule: Schedule, costs: PipelineCosts, stretch_of: Sequence[int], microbatches: int) -> Tried:
    """The step of a schedule.

    Args:
        schedule: which.
        costs: of the placement that goes with it.
        stretch_of: by node in code order, its stretch.
        microbatches: how many.

    Returns:
        The shorter of both ways to see its tasks.
    """
    actions = list(_actions(schedule, len(costs.cluster), microbatches))
    found = [
        _priced(schedule.name, costs, microbatches, list(_lines(costs.units, stretch_of, actions, which)))
        for which in ("first", "last")
    ]
    return min(found, key=lambda one: (not one.fits, one.step_s))


def _actions(schedule: Schedule, devices: int, microbatches: int) -> Iterator[list[Any]]:
    """By device, what torch does there, one after the other."""
    stages = [
        SimpleNamespace(
            num_stages=devices * schedule.stretches,
            group_size=devices,
            group_rank=0,
            group=None,
            stage_index=number * devices,
            is_first=number == 0,
            is_last=False,
            stage_index_to_group_rank={},
            submod=None,
        )
        for number in range(schedule.stretches)
    ]
    order = schedule.kind(stages, microbatches).pipeline_order
    for rank in range(devices):
        yield [
            one
            for action in order[rank]
            if action is not None
            for one in action.sub_actions or (action,)
            if one.computation_type.value in "FIWB"
        ]


def _lines(
    units: Units, stretch_of: Sequence[int], actions: Sequence[Sequence[Any]], which: Which
) -> Iterator[list[Task]]:
    """By device, its tasks."""
    parts: dict[int, set[int]] = defaultdict(set)  # by run, its stretches
    for run, stretch in zip(units.run_of, stretch_of, strict=True):
        if run >= 0:
            parts[run].add(stretch)
    forward, backward, weights = defaultdict(list), defaultdict(list), defaultdict(list)
    early, late = (min, max) if which == "first" else (max, min)
    for run in range(len(units.stage_of_run)):
        forward[early(parts[run])].append(run)
    awaited = {stage for before in units.backward_after for stage in before}
    for stage in units.backward_order[: units.whole]:
        home = late(set().union(*[parts[run] for run in units.runs_of[stage]]))
        apart = units.weights_stage.get(stage)
        # a stage that none waits for is whole: it goes with its inputs or with its weights
        (backward if apart is not None or stage in awaited or which == "first" else weights)[home].append(
            stage
        )
        if apart is not None:
            weights[home].append(apart)
    by_kind = {"F": (forward,), "I": (backward,), "W": (weights,), "B": (backward, weights)}
    for line in actions:
        yield [
            Task(
                "forward" if action.computation_type.value == "F" else "backward",
                action.microbatch_index,
                unit,
            )
            for action in line
            for found in by_kind[action.computation_type.value]
            for unit in found[action.stage_index]
        ]


def _priced(name: str, costs: PipelineCosts, microbatches: int, lines: Sequence[Sequence[Task]]) -> Tried:
    """Issued when its tasks start, so that one host keeps no device waiting.

    Where its lists contradict the model's code, they say which ready task goes first.
    """
    limits, ranks = [microbatches] * len(costs.cluster), backward_first(costs, microbatches)
    schedule = Listed(costs, microbatches, ranks, limits, lines)
    try:
        order = merged(costs.units, costs.cluster.names, microbatches, schedule.lines, schedule.start_s)
    except PlanError:
        for line in lines:
            for place, task in enumerate(line):
                ranks[costs.units.number(task)] = (place,)
        order = tuple(Listed(costs, microbatches, ranks, limits, in_code_order=True).start_s)
        return evaluated(costs, microbatches, f"{name}, as ranks", (), order)
    return evaluated(costs, microbatches, name, (), order)
