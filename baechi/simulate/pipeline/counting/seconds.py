"""What the runs and stages of a pipeline take of devices and of the host, in seconds.

A task is a sequence of layers. The host issues their kernels one after the other, so a task may be bound by
the device in some layers and by the host in others:

    host     |a|b|c|d|e|            its end is the later of
    device     |--a--|b|c|d|--e--|      its start, and what it takes of the device
                                        the host's begin, and what it takes if the device waits for no more
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import ceil
from typing import NamedTuple, Protocol

from baechi.cost.machine import paced_s
from baechi.cost.roofline import Work
from baechi.records.layer_costs import LayerCosts
from baechi.records.pipeline import Units
from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.pipeline.counting.sums import MovedSums


class TaskSeconds(NamedTuple):
    """Seconds by run in forward, and by stage in backward: see `PipelineCosts`."""

    forward_s: list[float]
    backward_s: list[float]
    add_s: list[float]
    host_forward_s: list[float]
    host_backward_s: list[float]
    add_host_s: list[float]
    paced_forward_s: list[float]
    paced_backward_s: list[float]
    paced_adding_s: list[float]


class Made(NamedTuple):
    """How far a run is when one of its layers is over.

    Args:
        begun_s: what it has taken of the device when the layer begins.
        done_s: what it has taken of the device.
        paced_s: from the host's begin of the run, where the device waits for the host alone.
        issued_s: what the host has done of the run when it has issued the layer.
    """

    begun_s: float
    done_s: float
    paced_s: float
    issued_s: float


class Regions(Protocol):
    """Regions of the model's code that run again in backward: see `RunningAgain`."""

    def reach(self, layer: int, stage: int) -> None:
        """Backward of a stage comes to a layer."""

    def without(self, layer: int, host_s: float, own_s: float) -> tuple[float, float]:
        """What backward of a layer takes of host and device without them."""


class _Since(NamedTuple):
    """How far a run was when the host waited for its device: see `Made`."""

    done_s: float
    paced_s: float
    issued_s: float


class SecondsCounter:
    """Counts what tasks take, without transfers.

    Args:
        plan: the placement, indexed.
        units: its stages and runs.
        task_s: what the host does before the first kernel of a task.

    Attributes:
        seconds: what was counted.
        made: by layer.
        awaited: by layer after which, or within which, the host waits for its device: how far it is then.
    """

    def __init__(self, plan: IndexedPlan, units: Units, task_s: float) -> None:
        self._plan, self._units = plan, units
        self._launch_s = plan.launch_s
        runs, stages = len(units.stage_of_run), len(units.device_of)  # those of weights are stages, too
        self.seconds = TaskSeconds(
            *([0.0] * runs, [0.0] * stages, [0.0] * stages),
            *([task_s] * runs, [task_s] * stages, [0.0] * stages),
            *([0.0] * runs, [0.0] * stages, [0.0] * stages),
        )
        self.made = [Made(0.0, 0.0, 0.0, 0.0)] * len(plan.indexed)
        self.awaited: dict[int, Made] = {}

    def forward(self, layers: Iterable[tuple[int, int]], awaited: Collection[int]) -> None:
        """Count layers.

        Where the host has waited for the device, the device waits for the host: it has nothing left to do.
        """
        plan, seconds = self._plan, self.seconds
        forward_s, host_s = plan.seconds_of("forward"), plan.host_s["forward"]
        since = [_Since(0.0, 0.0, 0.0)] * len(seconds.forward_s)
        paced = list(seconds.forward_s)  # since the host waited last
        for layer, run in layers:
            begun_s = seconds.forward_s[run]
            seconds.host_forward_s[run] += plan.own.call_s[layer] + plan.own.lane_s[layer]
            for part, waits in _stretches(plan.indexed.costs[layer], layer in awaited):
                met, issue_s, own_s = since[run], part * host_s[layer], part * forward_s[layer]
                host_begin_s = seconds.host_forward_s[run] - met.issued_s
                paced[run] = paced_s(paced[run], host_begin_s, issue_s, own_s, self._launch_s)
                seconds.host_forward_s[run] += issue_s
                seconds.forward_s[run] += own_s
                if met.done_s:
                    seconds.forward_s[run] = max(seconds.forward_s[run], met.done_s + paced[run])
                seconds.paced_forward_s[run] = met.paced_s + paced[run]
                reached = _Since(
                    seconds.forward_s[run], seconds.paced_forward_s[run], seconds.host_forward_s[run]
                )
                self.made[layer] = Made(begun_s, *reached)
                if waits:
                    since[run], paced[run], self.awaited[layer] = reached, 0.0, self.made[layer]

    def backward(
        self,
        layers: Iterable[tuple[int, int]],
        losses: Iterable[int],
        weights_part: Sequence[float],
        regions: Regions,
        sums: MovedSums,
    ) -> None:
        """Count layers."""
        plan, units, seconds = self._plan, self._units, self.seconds
        backward_s, host_s = plan.seconds_of("backward"), plan.host_s["backward"]
        of_weights_s = plan.host_costs.weights_s
        for stage in losses:  # that gradient is one kernel
            seconds.host_backward_s[stage] += self._launch_s
        for layer, stage in layers:
            adding, found = stage, plan.indexed.costs[layer]
            part = weights_part[layer] if stage in units.weights_stage else 0.0
            if layer in sums:
                self.work(stage, *sums.before(layer))
            regions.reach(layer, stage)
            issue_s, work_s = regions.without(layer, *sums.without(layer, host_s[layer], backward_s[layer]))
            self.work(stage, (1 - part) * issue_s, (1 - part) * work_s)
            if part:
                adding = units.weights_stage[stage]
                products = ceil(Work.of_additions(found).kernels / 2)  # each has a weight, most a bias
                self.work(adding, part * issue_s + products * of_weights_s, part * work_s)
            self._add(adding, found, plan.cluster.devices[units.device_of[stage]].bytes_per_s)

    def work(self, stage: int, issue_s: float, work_s: float) -> None:
        """Work in the backward of a stage, after what was counted there."""
        seconds = self.seconds
        begin_s, added_s = seconds.host_backward_s[stage], seconds.add_host_s[stage]
        for paced, more_s in ((seconds.paced_backward_s, 0.0), (seconds.paced_adding_s, added_s)):
            paced[stage] = paced_s(paced[stage], begin_s + more_s, issue_s, work_s, self._launch_s)
        seconds.backward_s[stage] += work_s
        seconds.host_backward_s[stage] += issue_s

    def _add(self, stage: int, found: LayerCosts, bytes_per_s: float) -> None:
        """Adding a layer's gradients to those of the microbatches before.

        Where gradients stay from step to step this is part of the layer's backward: the first microbatch
        adds to these.
        """
        if self._plan.graph.graph.get("accumulate"):
            return
        seconds, paced = self.seconds, self.seconds.paced_adding_s
        added = Work.of_additions(found)
        add_s = added.moved_bytes / bytes_per_s if bytes_per_s else 0.0
        issue_s = (self._launch_s + self._plan.host_costs.operator_s) * added.kernels
        begin_s = seconds.host_backward_s[stage] + seconds.add_host_s[stage]
        paced[stage] = paced_s(paced[stage], begin_s, issue_s, add_s, self._launch_s)
        seconds.add_s[stage] += add_s
        seconds.add_host_s[stage] += issue_s


def _stretches(costs: LayerCosts, is_awaited: bool) -> Iterator[tuple[float, bool]]:
    """A layer's kernels by the host's waits: which part of them, and whether it waits then.

    Its kernels count as equally long.
    """
    before = 0.0
    for number in sorted(set(costs.awaited_after)) if is_awaited and costs.kernels else ():
        yield (number - before) / costs.kernels, True
        before = number
    if before < costs.kernels or not before:
        yield 1.0 - before / max(1.0, costs.kernels), is_awaited and not before
