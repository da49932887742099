"""Several replicas of a model on one cluster: a pipeline for each, and the sum of their gradients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

from baechi.errors import PlanError
from baechi.records.abstract import AbstractRecord
from baechi.records.cluster import Cluster
from baechi.records.pipeline import Pipeline
from baechi.records.schema import DeviceName, Microbatches, Seconds, TotalSeconds
from baechi.units import format_seconds, format_share


@dataclass(frozen=True)
class ReplicasTried:
    """A number of replicas that was tried.

    Args:
        count: how many.
        step_s: the predicted step; none if nothing fits, or if it cannot be the best.
        refused: why not, if there is no step.
    """

    in_rows: ClassVar[bool] = True

    count: Microbatches
    step_s: TotalSeconds | None = None
    refused: str = ""


@dataclass(frozen=True, repr=False)
class Replicas(AbstractRecord):
    """The same pipeline on several groups of devices, each with a batch of its own.

        group 0   [ F0 F1 ... B0 B1 ... ] all-reduce      batch 0
        group 1   [ F0 F1 ... B0 B1 ... ] all-reduce      batch 1

    Args:
        pipeline: that of the first group, on its devices.
        cluster: all devices.
        groups: by replica, its devices, in the order of the pipeline's.
        all_reduce_s: by device of the first group, seconds to add up its gradients.
        tried: what else was tried.

    Raises:
        PlanError: groups of another size than the pipeline has devices, a device in two groups, or one that
            the cluster does not have.
    """

    record_kind: ClassVar[str] = "replicas"

    pipeline: Pipeline
    cluster: Cluster
    groups: tuple[tuple[DeviceName, ...], ...]
    all_reduce_s: Mapping[DeviceName, Seconds] = field(default_factory=dict)
    tried: tuple[ReplicasTried, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(map(tuple, self.groups)))
        object.__setattr__(self, "all_reduce_s", MappingProxyType(dict(self.all_reduce_s)))
        names, known = [name for group in self.groups for name in group], set(self.cluster.names)
        mine = self.pipeline.plan.cluster.names
        faults = [] if self.groups else ["there are no groups"]
        faults += [
            f"replica {number} has {len(group)} devices, and the pipeline {len(mine)}"
            for number, group in enumerate(self.groups)
            if len(group) != len(mine)
        ]
        faults += [f"{name!r} is no device of the cluster" for name in names if name not in known]
        faults += [f"{name!r} is in two replicas" for name in set(names) if names.count(name) > 1]
        if not faults and self.groups[0] != mine:
            faults.append("the first replica's devices are not those of the pipeline")
        if faults:
            raise PlanError("the replicas are malformed:", tuple(faults))

    @cached_property
    def step_s(self) -> float:
        """The predicted step: gradients of a device are added up once its last backward is over."""
        timeline = self.pipeline.timeline
        added_s = [end_s + self.all_reduce_s.get(name, 0.0) for name, end_s in self._ends_s.items()]
        return max([timeline.makespan_s, *added_s])

    @cached_property
    def bound_s(self) -> dict[str, float]:
        """What the step is measured by, in seconds: its work, its bubble, its gradients.

        `work` is what all devices compute, divided by their number: also what runs again, and gradients that
        are added up between microbatches. `bubble` is what 1F1B adds to that with one stage a device,
        `(devices - 1) / microbatches` of it. `gradients` is the mean of the devices' rings.
        """
        devices, timeline = self.pipeline.plan.cluster.names, self.pipeline.timeline
        work_s = sum([timeline.busy_s(name) for name in devices]) / len(devices)
        return {
            "work": work_s,
            "bubble": work_s * (len(devices) - 1) / self.pipeline.microbatches,
            "gradients": sum(self.all_reduce_s.values()) / len(devices),
        }

    @property
    def hidden_s(self) -> dict[str, float]:
        """By device of the first group, for how long it adds up gradients while other devices still work."""
        ends_s, takes_s = self._ends_s, self.all_reduce_s
        last_s = max(ends_s.values())
        return {name: min(last_s - end_s, takes_s.get(name, 0.0)) for name, end_s in ends_s.items()}

    @cached_property
    def _ends_s(self) -> dict[str, float]:
        """By device of the first group, when its last backward is over."""
        found = dict.fromkeys(self.pipeline.plan.cluster.names, 0.0)
        for span in self.pipeline.timeline.spans:
            if span.kind == "compute" and span.where in found:
                found[span.where] = max(found[span.where], span.end_s)
        return found

    @property
    def microbatches_per_s(self) -> float:
        """How many microbatches all replicas together train in a second."""
        return len(self.groups) * self.pipeline.microbatches / self.step_s

    def __str__(self) -> str:
        """What was chosen and why not more, and the report on one replica."""
        count, devices = len(self.groups), len(self.groups[0])
        lines = [
            f"{count} replica{'s' * (count > 1)} of {devices} device{'s' * (devices > 1)} each: a step of "
            f"{count} x {self.pipeline.microbatches} microbatches takes {format_seconds(self.step_s)}, "
            f"{format_seconds(self.step_s - self.pipeline.timeline.makespan_s)} of it adding up gradients"
        ]
        bound_s, idle = sum(self.bound_s.values()), devices - len(self.pipeline.plan.devices_used)
        if bound_s:
            parts = " + ".join([f"{name} {format_seconds(one_s)}" for name, one_s in self.bound_s.items()])
            lines.append(f"  {self.step_s / bound_s:.3g} times {parts}")
        lines += [f"  {idle} of the {devices} devices have no layer"] if idle else []
        for name, hidden_s in self.hidden_s.items():
            sum_s = self.all_reduce_s.get(name, 0.0)
            if sum_s:
                lines.append(
                    f"  {name} adds up gradients for {format_seconds(sum_s)}, "
                    f"{format_share(hidden_s, sum_s)} of it while other devices still work"
                )
        for one in self.tried:
            what = one.refused
            if one.step_s is not None:
                per_s = one.count * self.pipeline.microbatches / one.step_s
                what = f"{per_s:.4g} microbatches a second{', chosen' * (one.count == count)}"
            lines.append(f"  {one.count} of {len(self.cluster) // one.count}: {what}")
        return "\n".join([*lines, "", str(self.pipeline)])
