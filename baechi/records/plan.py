"""A plan: which device runs each layer, and in which order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from shutil import get_terminal_size
from types import MappingProxyType
from typing import Any, ClassVar

from baechi.errors import PlanError
from baechi.records import device_map
from baechi.records.abstract import AbstractRecord
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.lazy_imports import lazy_import
from baechi.records.schema import DeviceName, Name, Text, TotalBytes, TotalSeconds, few_of, some_of
from baechi.records.timeline import Timeline


@dataclass(frozen=True)
class Candidate:
    """A placement that was tried.

    Args:
        placer: who made it.
        step_s: its predicted step time in seconds; None if it was not placed.
        peak_bytes: its predicted peak by device.
        note: why it was not taken, if there is more to say than its figures.
    """

    in_rows: ClassVar[bool] = True

    placer: str
    step_s: TotalSeconds | None = None
    peak_bytes: Mapping[DeviceName, TotalBytes] = field(default_factory=dict)
    note: Text = ""


@dataclass(frozen=True, repr=False)
class Plan(AbstractRecord):
    """Devices and order for the layers of a graph on a cluster. Anyone can build one.

    Args:
        graph: the layer graph.
        cluster: the devices.
        device_of: device name of every node but inputs.
        order: every node but inputs, once, each after those it depends on; what a device runs is
            this order, restricted to its layers. Code order unless given.
        placer: who made the plan.
        candidates: what else was tried.
        dry: the timeline of a dry run of it, if there was one.

    Raises:
        PlanError: a node without a device or with an unknown one, a group or pin that is torn, an
            order that misses a layer or runs against an edge; every fault listed.
    """

    record_kind: ClassVar[str] = "plan"
    later: ClassVar[tuple[str, ...]] = ("dry",)

    graph: LayerGraph
    cluster: Cluster
    device_of: Mapping[Name, DeviceName]
    order: tuple[Name, ...] = ()
    placer: str = "hand"
    candidates: tuple[Candidate, ...] = ()
    dry: Timeline | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "device_of", MappingProxyType(dict(self.device_of)))
        object.__setattr__(self, "order", tuple(self.order) or self.graph.code_order())
        layers = list(self.graph.placed())
        faults = [
            *_device_faults(self, layers),
            *_group_faults(self),
            *_pin_faults(self, layers),
            *_order_faults(self, layers),
            *_figure_faults(self),
        ]
        if faults:
            raise PlanError("the plan is malformed:", tuple(faults))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Plan.from_json, (self.to_json(),))

    def __str__(self) -> str:
        """The report on it, as text."""
        return str(lazy_import("report")(self, width=get_terminal_size().columns)).rstrip("\n")

    def order_on(self, device: str) -> tuple[str, ...]:
        """What a device runs, in order.

        Args:
            device: a device's name.
        """
        return tuple(name for name in self.order if self.device_of[name] == device)

    @property
    def devices_used(self) -> tuple[str, ...]:
        """The devices that run something, in the cluster's order."""
        used = set(self.device_of.values())
        return tuple(name for name in self.cluster.names if name in used)

    @property
    def recompute(self) -> tuple[str, ...]:
        """The modules whose activations are not kept: backward runs them again. The graph notes them."""
        return tuple(self.graph.graph.get("recompute", ()))

    @cached_property
    def apart(self) -> Mapping[str, str]:
        """The functional ops that lie on another device than what they follow (`follows`), and its device."""
        followed = {name: costs.follows for name, costs in self.graph.placed_costs() if costs.follows}
        devices = {name: self.device_of[node] for name, node in followed.items() if node in self.device_of}
        return {name: device for name, device in devices.items() if self.device_of[name] != device}

    @cached_property
    def timeline(self) -> Timeline:
        """The predicted step: a dry run's, else simulated when first asked for; its `source` says which."""
        if self.dry is not None:
            return self.dry
        timeline: Timeline = lazy_import("simulate")(self)
        return timeline

    @classmethod
    def from_device_map(
        cls, graph: LayerGraph, cluster: Cluster | str, mapping: device_map.DeviceMap
    ) -> "Plan":
        """A plan made by hand, or by accelerate's `infer_auto_device_map`.

        A layer lies where most of its weights are mapped to, and functional ops go with their inputs. Layers
        that share weights stay together; where the map tears them, the log says which was moved. `"cpu"` and
        `"disk"`, if they are no devices of the cluster, stand for the map's first device, where accelerate
        computes with weights that it offloads.

        Args:
            graph: the layer graph.
            cluster: the devices, or text that `Cluster.parse` reads.
            mapping: device (name, index in the cluster, or `torch.device`) by name of a module or weight; a
                name covers what is below it, the longest one counts, `""` covers all.

        Returns:
            A plan in code order.

        Raises:
            PlanError: a layer with parameters that no name covers, or a device that is not there.
        """
        cluster = Cluster.parse(cluster)
        return cls(graph, cluster, device_map.devices_from_map(graph, cluster, mapping), placer="device_map")

    def to_device_map(self, *, index: bool = False) -> dict[str, Any]:
        """The plan as a device map: the shortest names that say where each layer lies.

        Args:
            index: numbers in place of devices' names (1 for `"cuda:1"` and `"device:1"`), as accelerate's
                `dispatch_model` and transformers' `from_pretrained(device_map=)` take them.

        Returns:
            Device by name of a module, or of a weight that no layer has.
        """
        mapping = device_map.map_from_devices(self.graph, self.device_of)
        return {name: device_map.index_of(device) if index else device for name, device in mapping.items()}


def _device_faults(plan: Plan, layers: Sequence[str]) -> list[str]:
    placed, known = set(layers), set(plan.cluster.names)
    faults = [f"layer {name} has no device" for name in layers if name not in plan.device_of]
    faults += [f"{name} is no layer of the graph" for name in plan.device_of if name not in placed]
    there = few_of(plan.cluster.names)
    return faults + some_of(
        f"layer {name} is on {device!r}: the devices are {there}"
        for name, device in plan.device_of.items()
        if device not in known
    )


def _group_faults(plan: Plan) -> list[str]:
    if not plan.graph.says("colocate"):
        return []
    faults = []
    for members in plan.graph.groups(apart=True).values():
        where = {plan.device_of.get(member): member for member in reversed(members)}
        if len(where) > 1:
            places = ", ".join(f"{member} on {device}" for device, member in where.items())
            faults.append(f"these must share a device: {places}")
    return faults


def _pin_faults(plan: Plan, layers: Sequence[str]) -> list[str]:
    if not plan.graph.says("pin"):
        return []
    return [
        f"layer {name} is pinned to {pin}, and placed on {plan.device_of.get(name)}"
        for name in layers
        if (pin := plan.graph.costs(name).pin) is not None and plan.device_of.get(name) != pin
    ]


def _order_faults(plan: Plan, layers: Sequence[str]) -> list[str]:
    place = {name: index for index, name in enumerate(plan.order)}
    placed = set(layers)
    faults = [f"the order misses {name}" for name in layers if name not in place]
    faults += [f"the order names {name}, no layer of the graph" for name in plan.order if name not in placed]
    if len(place) != len(plan.order):
        faults.append("the order names a layer twice")
    for source, targets in plan.graph.adjacency():
        after = place.get(source, -1)
        for target in targets:
            if place.get(target, after) < after:
                faults.append(f"the order runs {target} before {source}, which it depends on")
    return faults


def _figure_faults(plan: Plan) -> list[str]:
    """What is said of devices that are not there."""
    known, there = set(plan.cluster.names), few_of(plan.cluster.names)
    return some_of(
        f"candidate {one.placer} has a peak of {device!r}: the devices are {there}"
        for one in plan.candidates
        for device in one.peak_bytes
        if device not in known
    ) + ([] if plan.dry is None else plan.dry.strangers(plan.cluster.names))
