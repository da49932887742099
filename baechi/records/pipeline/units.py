"""What a pipeline schedules: runs in forward, stages in backward, one of each for every microbatch.

    code order    a  b  c  d  e  f        devices 0 0 1 1 0 0
    depth         0  0  1  1  2  2        device changes on the longest way to a layer; backward likewise
    stages        [a  b][c  d][e  f]      layers of one (device, forward depth, backward depth)

Along an edge the forward depth never falls and the backward depth never rises. From one stage to another one
of them changes. So no stages wait for each other in a circle, whatever the graph and the placement. (Devices
may: a model that comes back to its first one.) A run is a stretch of the code within one stage: its forward
can be one task, since the code reaches it as a whole.

Where backward of weights is apart, a stage's weights are one more stage on its device: without runs, behind
the stage whose weights they are, and no other stage waits for it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from baechi.errors import PlanError

Direction = Literal["forward", "backward"]

NOWHERE = -1
"""The device, run and stage of what runs on the host."""


class Task(NamedTuple):
    """What a device does without a break: the forward of a run, or the backward of a stage.

    Args:
        phase: `"forward"` or `"backward"`.
        microbatch: for which one, counted from 0.
        unit: the index of the run, or in backward of the stage.
    """

    phase: Direction
    microbatch: int
    unit: int


def tasks_of(given: Iterable[Sequence[Any]]) -> tuple[Task, ...]:
    """Tasks from what people and files write."""
    found = []
    for position, one in enumerate(given):
        if isinstance(one, str) or not isinstance(one, Sequence) or len(one) != len(Task._fields):
            raise PlanError(
                f"position {position} of the order is {one!r}: a task is (phase, microbatch, unit), such as "
                "('forward', 0, 0)"
            )
        found.append(Task(*one))
    return tuple(found)


class Stage(NamedTuple):
    """Layers whose backward is one task.

    Args:
        device: where they lie.
        forward_depth: device changes on the longest way from the inputs.
        backward_depth: device changes on the longest way to the outputs.
        layers: their names, in code order.
    """

    device: str
    forward_depth: int
    backward_depth: int
    layers: tuple[str, ...]


class Run(NamedTuple):
    """Layers whose forward is one task: a stretch of the code within one stage.

    Args:
        stage: its stage's index.
        layers: their names, in code order.
    """

    stage: int
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Units:
    """Stages, runs and what they wait for, as small integers. Nodes are in code order.

    Args:
        device_of: by stage, its device.
        depths: by stage, its depth in forward and in backward.
        stage_of_run: by run, its stage.
        runs_of: by stage, its runs.
        run_of: by node, its run; `NOWHERE` on the host.
        forward_after: by run, the runs that it follows: it reads what they make, or an edge says so.
        backward_after: by stage, the stages whose gradients it needs.
        training: whether there is a backward.
        weights_of: by stage of weights alone, the stage whose weights they are; these stages are the last.
    """

    device_of: tuple[int, ...]
    depths: tuple[tuple[int, int], ...]
    stage_of_run: tuple[int, ...]
    runs_of: tuple[tuple[int, ...], ...]
    run_of: tuple[int, ...]
    forward_after: tuple[tuple[int, ...], ...]
    backward_after: tuple[tuple[int, ...], ...]
    training: bool
    weights_of: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        edges: Sequence[tuple[int, int]],
        graded: Collection[tuple[int, int]],
        device_of: Sequence[int],
        *,
        training: bool,
    ) -> "Units":
        """Divide placed nodes into stages and runs."""
        depths = zip(*_depths(edges, device_of), strict=True)
        stages: dict[tuple[int, int, int], int] = {}
        stage_of_run: list[int] = []
        run_of: list[int] = []
        for device, (ahead, behind) in zip(device_of, depths, strict=True):
            if device == NOWHERE:
                run_of.append(NOWHERE)
                continue
            stage = stages.setdefault((device, ahead, behind), len(stages))
            if not stage_of_run or stage_of_run[-1] != stage:
                stage_of_run.append(stage)
            run_of.append(len(stage_of_run) - 1)
        runs_of: list[list[int]] = [[] for _ in stages]
        for run, stage in enumerate(stage_of_run):
            runs_of[stage].append(run)
        forward: list[set[int]] = [set() for _ in stage_of_run]
        backward: list[set[int]] = [set() for _ in stages]
        for edge in edges:
            maker, reader = run_of[edge[0]], run_of[edge[1]]
            if maker != reader:
                forward[reader].add(maker)
                ends = stage_of_run[maker], stage_of_run[reader]
                if ends[0] != ends[1] and edge in graded:
                    backward[ends[0]].add(ends[1])
        return cls(
            tuple([device for device, _, _ in stages]),
            tuple([(ahead, behind) for _, ahead, behind in stages]),
            tuple(stage_of_run),
            tuple([tuple(runs) for runs in runs_of]),
            tuple(run_of),
            tuple([tuple(sorted(found)) for found in forward]),
            tuple([tuple(sorted(found)) for found in backward]),
            training,
        )

    def with_weights_apart(self, weighted: Sequence[bool]) -> "Units":
        """The same with one more stage for the weights of each stage that another one waits for."""
        awaited = {stage for before in self.backward_after for stage in before}
        own = {self.stage_of_run[run] for run, some in zip(self.run_of, weighted, strict=True) if some}
        stages = tuple(sorted(own & awaited))
        return replace(
            self,
            device_of=self.device_of + tuple([self.device_of[stage] for stage in stages]),
            depths=self.depths + tuple([self.depths[stage] for stage in stages]),
            runs_of=self.runs_of + ((),) * len(stages),
            backward_after=self.backward_after + tuple([(stage,) for stage in stages]),
            weights_of=stages,
        )

    @cached_property
    def whole(self) -> int:
        """How many stages there are without those of weights alone."""
        return len(self.device_of) - len(self.weights_of)

    @cached_property
    def unit_devices(self) -> tuple[int, ...]:
        """By unit of a microbatch, its device: the runs, then the stages if there is a backward."""
        of_runs = tuple([self.device_of[stage] for stage in self.stage_of_run])
        return of_runs + self.device_of if self.training else of_runs

    @cached_property
    def weights_stage(self) -> dict[int, int]:
        """By stage whose weights are apart, the stage of its weights."""
        return {stage: self.whole + number for number, stage in enumerate(self.weights_of)}

    def device(self, task: Task) -> int:
        """The device of a task."""
        return self.device_of[self.stage_of_run[task.unit] if task.phase == "forward" else task.unit]

    def number(self, task: Task) -> int:
        """The number of a task: microbatch by microbatch, runs before stages."""
        place = task.unit + (len(self.stage_of_run) if task.phase == "backward" else 0)
        return task.microbatch * len(self.unit_devices) + place

    def task(self, number: int) -> Task:
        """The task of a number."""
        microbatch, place = divmod(number, len(self.unit_devices))
        stage = place - len(self.stage_of_run)
        return Task("forward", microbatch, place) if stage < 0 else Task("backward", microbatch, stage)

    def tasks(self, microbatches: int) -> Iterator[Task]:
        """Every task of a step, microbatch after microbatch, in an order that can run."""
        for microbatch in range(microbatches):
            for run in range(len(self.stage_of_run)):
                yield Task("forward", microbatch, run)
            for stage in self.backward_order if self.training else ():
                yield Task("backward", microbatch, stage)

    @property
    def backward_order(self) -> list[int]:
        """The stages, each after those whose gradients it needs: deepest first; those of weights last."""

        def depth(stage: int) -> tuple[int, int]:
            ahead, behind = self.depths[stage]
            return behind, -ahead

        whole = sorted(range(self.whole), key=depth)
        return [*whole, *[self.weights_stage[stage] for stage in whole if stage in self.weights_stage]]


def _depths(edges: Sequence[tuple[int, int]], device_of: Sequence[int]) -> tuple[list[int], list[int]]:
    """By node, the device changes on the longest way to it, and from it."""
    ahead, behind = [0] * len(device_of), [0] * len(device_of)
    for source, target in edges:  # sorted by source: all edges into a source have been seen
        ahead[target] = max(ahead[target], ahead[source] + (device_of[source] != device_of[target]))
    for source, target in sorted(edges, key=_target, reverse=True):
        behind[source] = max(behind[source], behind[target] + (device_of[source] != device_of[target]))
    return ahead, behind


def _target(edge: tuple[int, int]) -> int:
    return edge[1]
