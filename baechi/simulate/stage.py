"""A plan with everything that simulating it needs: indexes, devices, bytes, seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from baechi.cost.indexed import IndexedGraph
from baechi.cost.memory import Footprint, footprints
from baechi.records import Cluster, Device, LayerGraph, Plan
from baechi.records.timeline import Phase

_Table = list[list[float | None]]


@dataclass(frozen=True)
class Stage:
    """Where a plan is played. Layers and devices are indexes; the host's is that after the last.

    Args:
        graph: the layer graph.
        cluster: the devices.
        indexed: the graph, indexed.
        footprints: by layer.
        seconds: by phase, device and layer; None where nobody knows.
        host_s: by phase and layer, what the host takes to issue its kernels.
        device_of: by layer, its device.
        place: by layer, its place in the plan's order.
    """

    graph: LayerGraph
    cluster: Cluster
    indexed: IndexedGraph
    footprints: list[Footprint]
    seconds: dict[Phase, _Table]
    host_s: dict[Phase, list[float]]
    device_of: Sequence[int]
    place: Sequence[int]

    @classmethod
    def of(cls, plan: Plan, optimizer: str | None = None) -> "Stage":
        """Index a plan.

        Args:
            plan: the plan.
            optimizer: whose state counts in training; that of the graph unless given.

        Raises:
            ValueError: the optimizer is unknown.
        """
        stage = cls.empty(plan.graph, plan.cluster, optimizer)
        devices = {name: index for index, name in enumerate(plan.cluster.names)}
        places = {name: index for index, name in enumerate(plan.order)}
        names = stage.indexed.names
        return stage.with_plan([devices[plan.device_of[n]] for n in names], [places[n] for n in names])

    @classmethod
    def empty(cls, graph: LayerGraph, cluster: Cluster, optimizer: str | None = None) -> "Stage":
        """What all plans of a graph on a cluster have in common.

        Args:
            graph: the layer graph.
            cluster: the devices.
            optimizer: as for `of`.
        """
        indexed = IndexedGraph.of(graph)
        table = footprints(graph, optimizer)
        phases: tuple[Phase, ...] = ("forward", "backward") if graph.training else ("forward",)
        return cls(
            graph,
            cluster,
            indexed,
            [table[name] for name in indexed.names],
            {phase: _seconds(graph, indexed.names, cluster, phase) for phase in phases},
            {phase: [graph.amount(name, f"host_{phase}_s") for name in indexed.names] for phase in phases},
            (),
            (),
        )

    def with_plan(self, device_of: Sequence[int], place: Sequence[int]) -> "Stage":
        """The same graph and cluster with another plan.

        Args:
            device_of: by layer, its device.
            place: by layer, its place in the order.
        """
        return replace(self, device_of=device_of, place=place)

    def seconds_of(self, phase: Phase) -> list[float]:
        """By layer, how long it runs on its device.

        Args:
            phase: forward or backward.

        Raises:
            RecordError: times are given by kind of device, and not for the one that a layer is on.
        """
        table = self.seconds[phase]
        seconds = []
        for layer, device in enumerate(self.device_of):
            known = table[device][layer]
            if known is None:
                name, on = self.indexed.names[layer], self.cluster.devices[device]
                known = self.graph.seconds(name, f"{phase}_s", on.kind, on.speed)
            seconds.append(known)
        return seconds

    @property
    def host(self) -> int:
        """The host's index."""
        return len(self.cluster)

    @cached_property
    def queues(self) -> list[list[int]]:
        """By device, its layers in the plan's order."""
        queues: list[list[int]] = [[] for _ in self.cluster.devices]
        for layer in sorted(range(len(self.place)), key=self.place.__getitem__):
            queues[self.device_of[layer]].append(layer)
        return queues


def _seconds(graph: LayerGraph, names: Sequence[str], cluster: Cluster, phase: Phase) -> _Table:
    """By device and layer; None where nobody knows it, which matters only if the layer is put there."""
    rows: dict[tuple[str, float], list[float | None]] = {}
    for device in cluster.devices:
        key = (device.kind, device.speed)
        if key not in rows:
            rows[key] = [_known(graph, name, f"{phase}_s", device) for name in names]
    return [rows[device.kind, device.speed] for device in cluster.devices]


def _known(graph: LayerGraph, name: str, attribute: str, device: Device) -> float | None:
    times = graph.nodes[name].get(attribute)
    if isinstance(times, Mapping) and device.kind not in times:
        return None
    return graph.seconds(name, attribute, device.kind, device.speed)
