"""A plan with everything that simulating it needs: indexes, devices, bytes, seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from baechi.cost.indexed import IndexedGraph, seconds_by_device
from baechi.cost.memory import Footprint, footprints
from baechi.records import Cluster, Device, LayerGraph, Plan
from baechi.records.timeline import Phase


@dataclass(frozen=True)
class Stage:
    """Where a plan is played. Layers and devices are indexes; the host's is that after the last.

    Args:
        graph: the layer graph.
        cluster: the devices.
        indexed: the graph, indexed.
        footprints: by layer.
        seconds: by phase, device and layer.
        host_s: by phase and layer, what the host takes to issue its kernels.
        device_of: by layer, its device.
        place: by layer, its place in the plan's order.
    """

    graph: LayerGraph
    cluster: Cluster
    indexed: IndexedGraph
    footprints: list[Footprint]
    seconds: dict[Phase, list[list[float]]]
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
            RecordError: times are given by kind of device, and not for one of the devices.
            ValueError: the optimizer is unknown.
        """
        stage = cls.empty(plan.graph, plan.cluster, optimizer, used=plan.devices_used)
        devices = {name: index for index, name in enumerate(plan.cluster.names)}
        places = {name: index for index, name in enumerate(plan.order)}
        names = stage.indexed.names
        return stage.with_plan([devices[plan.device_of[n]] for n in names], [places[n] for n in names])

    @classmethod
    def empty(
        cls,
        graph: LayerGraph,
        cluster: Cluster,
        optimizer: str | None = None,
        *,
        used: Sequence[str] | None = None,
    ) -> "Stage":
        """What all plans of a graph on a cluster have in common.

        Args:
            graph: the layer graph.
            cluster: the devices.
            optimizer: as for `of`.
            used: the devices that matter; all unless given.
        """
        devices = [device for device in cluster.devices if used is None or device.name in used]
        indexed = IndexedGraph.of(graph)
        table = footprints(graph, optimizer)
        phases: tuple[Phase, ...] = ("forward", "backward") if graph.training else ("forward",)
        return cls(
            graph,
            cluster,
            indexed,
            [table[name] for name in indexed.names],
            {phase: _seconds(graph, indexed.names, cluster, devices, phase) for phase in phases},
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


def _seconds(
    graph: LayerGraph, names: Sequence[str], cluster: Cluster, devices: Sequence[Device], phase: Phase
) -> list[list[float]]:
    """By device and layer; nothing for devices that do not matter, of which nobody may know times."""
    rows = iter(seconds_by_device(graph, names, devices, f"{phase}_s"))
    return [next(rows) if device in devices else [] for device in cluster.devices]
