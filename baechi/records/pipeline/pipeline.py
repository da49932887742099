"""A pipeline: a plan for one microbatch, and the order in which the tasks of all of them are issued."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from shutil import get_terminal_size
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from baechi.errors import PlanError
from baechi.records.abstract import AbstractRecord
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.lazy_imports import lazy_import
from baechi.records.pipeline.dependencies import in_flight, limit_faults, order_faults
from baechi.records.pipeline.stage_units import units_of
from baechi.records.pipeline.units import NOWHERE, Run, Stage, Task, Units, tasks_of
from baechi.records.plan import Plan
from baechi.records.schema import (
    DeviceName,
    Dimension,
    Microbatches,
    Name,
    Positive,
    TotalBytes,
    TotalSeconds,
    few_of,
    some_of,
)
from baechi.records.timeline import Timeline

ITEMS = "items"
"""In place of a dimension: the items of lists are rows."""

KeptSplit = Dimension | Literal["items"] | None
"""How an input is divided, as files hold it."""


_APART = "weights apart, "
"""How rules begin of orders in which the backward of weights is apart."""


@dataclass(frozen=True)
class OrderTried:
    """An order that was tried for a pipeline.

    Args:
        rule: how it was made.
        step_s: the predicted step time in seconds.
        peak_bytes: the predicted peak by device.
        limits: by device, the microbatches that it allowed in flight.
        fits: whether every peak fits its device.
    """

    in_rows: ClassVar[bool] = True

    rule: str
    step_s: TotalSeconds
    peak_bytes: Mapping[DeviceName, TotalBytes]
    limits: Mapping[DeviceName, Positive] = field(default_factory=dict)
    fits: bool = True

    @property
    def is_apart(self) -> bool:
        """Whether the backward of weights is apart."""
        return self.rule.startswith(_APART)

    def apart(self) -> "OrderTried":
        """The same, where the backward of weights is apart."""
        return replace(self, rule=_APART + self.rule)


@dataclass(frozen=True, repr=False)
class Pipeline(AbstractRecord):
    """A step in microbatches: where layers run, and one list of tasks that the host obeys.

    It says what its plan says of devices: `graph`, `cluster`, `device_of`, `devices_used`, `placer`,
    `recompute`, `to_device_map()`. Step and peaks of the whole batch are its own `timeline`.

    Args:
        plan: devices of the layers; its graph has the costs of one microbatch.
        microbatches: into how many parts the batch is split.
        order: every task once, each after those that it depends on; what a device runs is this list,
            restricted to its tasks.
        rule: who made the order.
        limits: by device, the most microbatches in flight there; a device that is not named has no limit.
        split: by input's name, the dimension that is split, `"items"` if items of lists are rows, or None for
            an input that goes whole. Inputs that are not named are split where they have the batch's rows.
        tried: what else was tried.
        unsplit: the plan without microbatches that it was compared with, if any; its graph has the costs of
            the whole batch. It need not fit.
        dry: the timeline of a dry run of it, if there was one.

    Raises:
        PlanError: fewer than 1 microbatch, a task missing or twice, an order against data, code or
            microbatches (with both positions), more in flight than a limit, a limit for an unknown device.
    """

    record_kind: ClassVar[str] = "pipeline"
    later: ClassVar[tuple[str, ...]] = ("unsplit", "dry")

    plan: Plan
    microbatches: Microbatches
    order: tuple[Task, ...]
    rule: str = "hand"
    limits: Mapping[DeviceName, Positive] = field(default_factory=dict)
    split: Mapping[Name, KeptSplit] = field(default_factory=dict)
    tried: tuple[OrderTried, ...] = ()
    unsplit: Plan | None = None
    dry: Timeline | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", tasks_of(self.order))
        object.__setattr__(self, "limits", MappingProxyType(dict(self.limits)))
        object.__setattr__(self, "split", MappingProxyType(dict(self.split)))
        names = self.plan.cluster.names
        whole = isinstance(self.microbatches, int) and self.microbatches >= 1
        faults = [] if whole else [f"microbatches is {self.microbatches!r}: a whole number of at least 1"]
        faults += [
            f"the limit of {name} is {limit!r}: a whole number of at least 1"
            for name, limit in self.limits.items()
            if not (isinstance(limit, int) and limit >= 1)
        ]
        known, there = set(names), few_of(names)
        faults += some_of(
            f"there is a limit for {name!r}: the devices are {there}"
            for name in self.limits
            if name not in known
        )
        faults += [
            f"input {name!r} is split along {dim!r}: a dimension's number, {ITEMS!r}, or None"
            for name, dim in self.split.items()
            if not (dim is None or dim == ITEMS or isinstance(dim, int))
        ]
        faults += some_of(
            f"what {one.rule} says names {name!r}: the devices are {there}"
            for one in self.tried
            for name in {**one.peak_bytes, **one.limits}
            if name not in known
        )
        faults += [] if self.dry is None else self.dry.strangers(names)
        faults = faults or list(order_faults(self.units, names, self.microbatches, self.order))
        faults = faults or limit_faults(self.units, names, self.order, self.limits)
        if faults:
            raise PlanError("the pipeline is malformed:", tuple(faults))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Pipeline.from_json, (self.to_json(),))

    def __str__(self) -> str:
        """The report on it, as text."""
        return str(lazy_import("report")(self, width=get_terminal_size().columns)).rstrip("\n")

    @cached_property
    def units(self) -> Units:
        """Stages, runs and what they wait for, as small integers."""
        return units_of(self.plan)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, by index: the backward of each is one task."""
        layers: list[list[str]] = [[] for _ in range(self.units.whole)]
        for run in self.runs:
            layers[run.stage] += run.layers
        layers += [layers[stage] for stage in self.units.weights_of]
        names = self.plan.cluster.names
        return tuple(
            Stage(names[device], *depths, tuple(within))
            for device, depths, within in zip(self.units.device_of, self.units.depths, layers, strict=True)
        )

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs, by index: the forward of each is one task."""
        layers: list[list[str]] = [[] for _ in self.units.stage_of_run]
        for name, run in zip(self.plan.graph.code_order(), self.units.run_of, strict=True):
            if run != NOWHERE:
                layers[run].append(name)
        pairs = zip(self.units.stage_of_run, layers, strict=True)
        return tuple(Run(stage, tuple(within)) for stage, within in pairs)

    @cached_property
    def timeline(self) -> Timeline:
        """The predicted step: a dry run's, else simulated when first asked for; its `source` says which."""
        if self.dry is not None:
            return self.dry
        timeline: Timeline = lazy_import("simulate_pipeline")(self)
        return timeline

    @property
    def in_flight(self) -> dict[str, int]:
        """By device, the most microbatches that are in flight there."""
        names = self.plan.cluster.names
        return dict(zip(names, in_flight(self.units, len(names), self.order), strict=True))

    @property
    def graph(self) -> LayerGraph:
        """The layer graph, with the costs of one microbatch."""
        return self.plan.graph

    @property
    def cluster(self) -> Cluster:
        """The devices."""
        return self.plan.cluster

    @property
    def device_of(self) -> Mapping[str, str]:
        """The device of every node but inputs."""
        return self.plan.device_of

    @property
    def devices_used(self) -> tuple[str, ...]:
        """The devices that run something, in the cluster's order."""
        return self.plan.devices_used

    @property
    def placer(self) -> str:
        """Who placed the layers."""
        return self.plan.placer

    @property
    def recompute(self) -> tuple[str, ...]:
        """The modules whose activations are not kept: backward runs them again."""
        return self.plan.recompute

    def to_device_map(self, *, index: bool = False) -> dict[str, Any]:
        """Where each layer lies; see `Plan.to_device_map`.

        Args:
            index: numbers in place of devices' names.

        Returns:
            Device by name of a module, or of a weight that no layer has.
        """
        return self.plan.to_device_map(index=index)

    def order_on(self, device: str) -> tuple[Task, ...]:
        """What a device runs, in order.

        Args:
            device: a device's name.
        """
        number = self.plan.cluster.names.index(device)
        return tuple(task for task in self.order if self.units.device(task) == number)
