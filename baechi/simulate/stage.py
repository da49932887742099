"""A plan with everything that simulating it needs: indexes, devices, bytes, seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import NamedTuple

from baechi.cost.indexed import IndexedGraph
from baechi.cost.memory import Footprint, footprints
from baechi.cost.tails import Tail, tails_of
from baechi.records import Cluster, Device, LayerGraph, Plan
from baechi.records.timeline import Phase


class Step(NamedTuple):
    """A stretch of a layer's backward.

    Args:
        part: the part of its kernels that was issued before.
        rise_bytes: what it adds to what is there, at most, if nothing of that goes.
        kind: what may go when it begins, if the placement lets it: `"out"`, the gradient of its output;
            `"lent"`, what autograd keeps for it of its inputs; `"sum"`, gradients of its inputs that
            its own are added to, beside which the sum comes first (`"add"`); `""` nothing.
        size_bytes: how much that is.
    """

    part: float
    rise_bytes: int
    kind: str = ""
    size_bytes: int = 0


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
        tails: by phase and layer, the kernels that may decide when it ends.
        is_glue: by layer, whether it is glue.
        lent_bytes: by layer, what autograd keeps of its output for readers only.
        held_bytes: by layer, what the model's code holds to the end of forward.
        span_bytes: by layer, what a copy of the gradient of its output takes, if that has gaps.
        temp_bytes: by layer, what it needs only while it runs forward.
        rising_bytes: by layer, what it holds at the most while it runs forward: pairs of the part of its
            kernels that was issued before, and of bytes; none if it holds all from the beginning.
        steps: by layer, what its backward adds to what is there (`Step`).
        device_of: by layer, its device.
        place: by layer, its place in the plan's order.
    """

    graph: LayerGraph
    cluster: Cluster
    indexed: IndexedGraph
    footprints: list[Footprint]
    seconds: dict[Phase, _Table]
    host_s: dict[Phase, list[float]]
    tails: dict[Phase, list[Tail]]
    is_glue: Sequence[bool]
    lent_bytes: Sequence[int]
    held_bytes: Sequence[int]
    span_bytes: Sequence[int]
    temp_bytes: Sequence[int]
    rising_bytes: Sequence[Sequence[tuple[float, int]]]
    steps: Sequence[Sequence[Step]]
    device_of: Sequence[int]
    place: Sequence[int]
    _spread: "Stage | None" = None

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
        parts = [table[name] for name in indexed.names]
        phases: tuple[Phase, ...] = ("forward", "backward") if graph.training else ("forward",)

        def amounts(what: str) -> list[int]:
            return [ceil(graph.amount(name, f"{what}_bytes")) * graph.training for name in indexed.names]

        whole = cls(
            graph,
            cluster,
            indexed,
            parts,
            {phase: _seconds(graph, indexed.names, cluster, phase) for phase in phases},
            {phase: [graph.amount(name, f"host_{phase}_s") for name in indexed.names] for phase in phases},
            {phase: tails_of(graph, indexed.names, phase, cluster.launch_s) for phase in phases},
            [graph.nodes[name].get("kind") == "glue" for name in indexed.names],
            amounts("lent"),
            amounts("held"),
            amounts("upstream_span"),
            _forward_temp_bytes(graph, indexed.names),
            [graph.nodes[name].get("rising_bytes", ()) for name in indexed.names],
            _steps(graph, indexed.names, parts),
            (),
            (),
        )
        on_host = [layer for layer, name in enumerate(indexed.names) if graph.nodes[name].get("on_host")]
        return replace(whole, _spread=whole._without(on_host)) if on_host else whole

    def _without(self, on_host: Sequence[int]) -> "Stage":
        """The same where glue that reads inputs only runs on the host, and takes nothing of devices."""
        table = list(self.footprints)
        seconds = {phase: [list(row) for row in rows] for phase, rows in self.seconds.items()}
        host_s = {phase: list(times) for phase, times in self.host_s.items()}
        temp_bytes, steps = list(self.temp_bytes), list(self.steps)
        lent_bytes, held_bytes, rising_bytes = (
            list(self.lent_bytes),
            list(self.held_bytes),
            list(self.rising_bytes),
        )
        for layer in on_host:
            table[layer] = Footprint(0, 0, 0, 0, 0)
            lent_bytes[layer] = held_bytes[layer] = temp_bytes[layer] = 0
            steps[layer] = ()
            rising_bytes[layer] = ()
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
            rising_bytes=rising_bytes,
            steps=steps,
        )

    def with_plan(self, device_of: Sequence[int], place: Sequence[int]) -> "Stage":
        """The same graph and cluster with another plan.

        Args:
            device_of: by layer, its device.
            place: by layer, its place in the order.
        """
        base = self._spread if self._spread is not None and len(set(device_of)) > 1 else self
        return replace(base, device_of=device_of, place=place)

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

    @property
    def knows_host(self) -> bool:
        """Whether the graph says what the host takes."""
        return any(self.host_s["forward"])

    @cached_property
    def queues(self) -> list[list[int]]:
        """By device, its layers in the plan's order."""
        queues: list[list[int]] = [[] for _ in self.cluster.devices]
        for layer in sorted(range(len(self.place)), key=self.place.__getitem__):
            queues[self.device_of[layer]].append(layer)
        return queues


def _forward_temp_bytes(graph: LayerGraph, names: Sequence[str]) -> list[int]:
    """By layer; where phases are not told apart, the most of both."""
    known = graph.training and any("forward_temp_bytes" in graph.nodes[name] for name in names)
    return [ceil(graph.amount(name, "forward_temp_bytes" if known else "temp_bytes")) for name in names]


def _steps(graph: LayerGraph, names: Sequence[str], parts: Sequence[Footprint]) -> list[list[Step]]:
    """By layer; where nobody says, what it needs and the gradients of its weights."""
    known = any("backward_rise_bytes" in graph.nodes[name] for name in names)
    found = []
    for name, part in zip(names, parts, strict=True):
        needed = graph.amount(name, "backward_rise_bytes") if known else part.temp_bytes + part.gradient_bytes
        told = graph.nodes[name].get("backward_steps") if known else None
        found.append([Step(*step) for step in told] if told else [Step(0.0, ceil(needed))])
    return found


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
