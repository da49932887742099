"""A plan with everything that simulating it needs: indexes, devices, bytes, seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph
from baechi.cost.machine import host_s_of, last_part
from baechi.cost.memory import Footprint, footprints_of, saved_returned_bytes
from baechi.cost.own_work import OwnWork, host_costs_of
from baechi.records import Cluster, Device, HostCosts, LayerGraph, Plan
from baechi.records.layer_costs import LayerCosts
from baechi.records.timeline import Phase
from baechi.simulate.issue_bounds import additions

_Table = list[list[float | None]]


@dataclass(frozen=True)
class IndexedPlan:
    """A plan, indexed for simulation. Layers and devices are indexes; the host's is that after the last.

    Args:
        graph: the layer graph.
        cluster: the devices.
        indexed: the graph, indexed.
        footprints: by layer.
        seconds: by phase, device and layer; None where the time is unknown.
        host_s: by phase and layer, what the host takes to issue its kernels.
        last_parts: by phase and layer, the fraction of its work that remains when its last kernel is issued.
        has_no_turn: by layer, whether no order has it: a functional op, or weights that nothing reads.
        lent_bytes: by layer, bytes of its output that only autograd keeps, and for its consumers only.
        held_bytes: by layer, bytes that the model's code holds to the end of forward.
        temp_bytes: by layer, transient bytes while it runs forward.
        rise_bytes: by layer, the most that its backward adds to the live bytes.
        own: what the runtime takes of the host.
        device_of: by layer, its device.
        place: by layer, its place in the plan's order.
    """

    graph: LayerGraph
    cluster: Cluster
    indexed: IndexedGraph
    footprints: list[Footprint]
    seconds: dict[Phase, _Table]
    host_s: dict[Phase, list[float]]
    last_parts: dict[Phase, list[float]]
    has_no_turn: Sequence[bool]
    lent_bytes: Sequence[int]
    held_bytes: Sequence[int]
    temp_bytes: Sequence[int]
    rise_bytes: Sequence[int]
    own: OwnWork
    device_of: Sequence[int]
    place: Sequence[int]
    _spread: "IndexedPlan | None" = None

    @classmethod
    def of(cls, plan: Plan, optimizer: str | None = None) -> "IndexedPlan":
        """Index a plan."""
        stage = cls.empty(plan.graph, plan.cluster, optimizer)
        devices = {name: index for index, name in enumerate(plan.cluster.names)}
        places = {name: index for index, name in enumerate(plan.order)}
        names = stage.indexed.names
        return stage.with_plan([devices[plan.device_of[n]] for n in names], [places[n] for n in names])

    @classmethod
    def empty(cls, graph: LayerGraph, cluster: Cluster, optimizer: str | None = None) -> "IndexedPlan":
        """Index what all plans of a graph on a cluster have in common."""
        says = graph.says("host_forward_s")
        knows_host = says and any([costs.host_forward_s for _, costs in graph.placed_costs()])
        indexed = IndexedGraph.of(graph, alone=knows_host)
        parts = footprints_of(graph, indexed.costs, optimizer)
        phases: tuple[Phase, ...] = ("forward", "backward") if graph.training else ("forward",)
        layers, training = indexed.costs, graph.training
        host_s = {phase: host_s_of(layers, phase) for phase in phases}
        whole = cls(
            graph,
            cluster,
            indexed,
            parts,
            {phase: _seconds(layers, cluster, phase) for phase in phases},
            host_s,
            {phase: [last_part(own_s, cluster.launch_s) for own_s in host_s[phase]] for phase in phases},
            [costs.kind == "glue" or costs.unread for costs in layers],
            [_lent_bytes(costs, graph) * training for costs in layers],
            [ceil(costs.held_bytes) * training for costs in layers],
            _forward_temp_bytes(graph, layers),
            _rise_bytes(graph, layers, parts),
            OwnWork.of(graph, indexed, cluster),
            (),
            (),
        )
        on_host = [layer for layer, costs in enumerate(layers) if costs.on_host]
        differs = on_host or (knows_host and FROM_HOST in indexed.source)
        return replace(whole, _spread=whole._without(on_host)) if differs else whole

    def _without(self, on_host: Sequence[int]) -> "IndexedPlan":
        """The same plan for several devices: inputs travel as they are read, and glue that reads only inputs
        runs on the host, where it takes nothing of a device."""
        table = list(self.footprints)
        seconds = {phase: [list(row) for row in rows] for phase, rows in self.seconds.items()}
        host_s = {phase: list(times) for phase, times in self.host_s.items()}
        temp_bytes, rise_bytes = list(self.temp_bytes), list(self.rise_bytes)
        lent_bytes, held_bytes = list(self.lent_bytes), list(self.held_bytes)
        for layer in on_host:
            table[layer] = Footprint(0, 0, 0, 0, 0)
            lent_bytes[layer] = held_bytes[layer] = temp_bytes[layer] = rise_bytes[layer] = 0
            for phase in seconds:
                host_s[phase][layer] = 0.0
                for row in seconds[phase]:
                    row[layer] = 0.0
        indexed = IndexedGraph.of(self.graph, spread=True)
        return replace(
            self,
            indexed=indexed,
            footprints=table,
            seconds=seconds,
            host_s=host_s,
            lent_bytes=lent_bytes,
            held_bytes=held_bytes,
            temp_bytes=temp_bytes,
            rise_bytes=rise_bytes,
            own=OwnWork.of(self.graph, indexed, self.cluster),
        )

    def with_plan(self, device_of: Sequence[int], place: Sequence[int]) -> "IndexedPlan":
        """The same graph and cluster with another plan."""
        base = self._spread if self._spread is not None and len(set(device_of)) > 1 else self
        return replace(base, device_of=device_of, place=place)

    def seconds_of(self, phase: Phase) -> list[float]:
        """By layer, how long it runs on its device."""
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
    def spread(self) -> "IndexedPlan":
        """The same as on several devices."""
        return self if self._spread is None else self._spread

    @property
    def host(self) -> int:
        """The host's index."""
        return len(self.cluster)

    @cached_property
    def knows_host(self) -> bool:
        """Whether the graph says what the host takes."""
        return any(self.host_s["forward"])

    @property
    def launch_s(self) -> float:
        """What the host takes to issue one kernel; 0 where the graph does not say what it takes."""
        return self.cluster.launch_s if self.knows_host else 0.0

    @cached_property
    def host_costs(self) -> HostCosts:
        """What the runtime's own work takes of the host; nothing if graph or cluster does not say."""
        return host_costs_of(self.graph, self.cluster) if self.knows_host else HostCosts()

    @cached_property
    def queues(self) -> list[list[int]]:
        """By device, its layers in the plan's order."""
        queues: list[list[int]] = [[] for _ in self.cluster.devices]
        for layer in sorted(range(len(self.place)), key=self.place.__getitem__):
            queues[self.device_of[layer]].append(layer)
        return queues

    @cached_property
    def works_back(self) -> list[bool]:
        """By layer, whether its backward has kernels beside gradient sums; a view has none.

        All have, if the graph does not say what the host takes.
        """
        if not self.knows_host:
            return [True] * len(self.indexed)
        # Half a launch separates "sums only" from "one kernel more", whatever the rounding of measured times.
        launch_s, host_s = self.cluster.launch_s, self.host_s["backward"]
        sums = additions(self.indexed)
        return [own_s > ((n + 0.5) * launch_s if n else 0.0) for own_s, n in zip(host_s, sums, strict=True)]


def _lent_bytes(costs: LayerCosts, graph: LayerGraph) -> int:
    """Bytes of an output that go with the backward of its consumers: not if the caller holds it, too."""
    lent = ceil(costs.lent_bytes)
    return max(0, lent - saved_returned_bytes(costs)) if graph.outputs_stay else lent


def _forward_temp_bytes(graph: LayerGraph, layers: Sequence[LayerCosts]) -> list[int]:
    """By layer; the larger of both phases where the graph does not separate them."""
    if graph.training and (graph.says("forward_temp_bytes") or graph.says("backward_rise_bytes")):
        return [ceil(costs.forward_temp_bytes) for costs in layers]
    return [ceil(costs.temp_bytes) for costs in layers]


def _rise_bytes(graph: LayerGraph, layers: Sequence[LayerCosts], parts: Sequence[Footprint]) -> list[int]:
    """By layer; if the graph does not say, its transient bytes and its weights' gradients."""
    if not graph.says("backward_rise_bytes"):
        return [part.temp_bytes + part.gradient_bytes for part in parts]
    return [ceil(costs.backward_rise_bytes) for costs in layers]


def _seconds(layers: Sequence[LayerCosts], cluster: Cluster, phase: Phase) -> _Table:
    """By device and layer; None where it is unknown, which matters only if the layer is put there."""
    times = [costs.backward_s if phase == "backward" else costs.forward_s for costs in layers]
    rows: dict[tuple[str, float], list[float | None]] = {}
    for device in cluster.devices:
        key = (device.kind, device.speed)
        if key not in rows:
            rows[key] = [_known_s(of_layer, device) for of_layer in times]
    return [rows[device.kind, device.speed] for device in cluster.devices]


def _known_s(times: float | Mapping[str, float], device: Device) -> float | None:
    if isinstance(times, Mapping):
        return float(times[device.kind]) if device.kind in times else None
    return float(times) / device.speed
