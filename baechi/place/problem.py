"""A placement problem, with all derived tables computed once: indexes, bytes, seconds, pins."""

from collections.abc import Sequence
from functools import cached_property

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph, seconds_by_device
from baechi.cost.memory import footprints_of
from baechi.cost.transfer import link_table, transfer_s
from baechi.errors import PlacementError
from baechi.place.group_bytes import GroupBytes
from baechi.place.launch_rules import LaunchRules
from baechi.records import Candidate, Cluster, LayerGraph, Link, Plan

ANYWHERE = -1
"""The pin of a group that is not pinned, and the device of a group that is not placed."""


class Problem:
    """A graph to place on a cluster. Layers, groups, tensors and devices are indexes.

    In training the whole step counts: a layer costs its forward and its backward, and a tensor costs its
    transfer and that of its gradient back. Backward runs the forward's schedule in reverse, on the same
    devices and over the reverse links.

    Args:
        graph: the layer graph.
        cluster: the devices; the host's index is that after the last.
        optimizer: whose state counts in training; see `baechi.cost.memory`.
        apart: whether functional ops may lie apart from what they follow; see `LayerGraph.groups`.

    Raises:
        PlacementError: a pin names no device, or one group has pins to two devices.
        ValueError: the optimizer is unknown.
    """

    def __init__(
        self, graph: LayerGraph, cluster: Cluster, optimizer: str | None = None, *, apart: bool = False
    ) -> None:
        self.graph = graph
        self.cluster = cluster
        self.training = graph.training
        self.indexed = IndexedGraph.of(graph, apart=apart)
        self.memory_bytes = [device.memory_bytes for device in cluster.devices]
        self.footprints = footprints_of(graph, self.indexed.costs, optimizer)
        self.links = link_table(cluster)
        self.pins = self._pins()

    @property
    def host(self) -> int:
        """The host's index."""
        return len(self.cluster)

    @property
    def devices(self) -> range:
        """The devices' indexes."""
        return range(len(self.cluster))

    @cached_property
    def group_bytes(self) -> list[GroupBytes]:
        """By group: the bytes that it takes on its device."""
        stays, parts = self._stays(), self.footprints
        groups = []
        for members in self.indexed.members:
            final_bytes = sum([parts[layer].output_bytes for layer in members if stays[layer]])
            groups.append(GroupBytes.of([parts[layer] for layer in members], final_bytes))
        return groups

    @cached_property
    def named(self) -> set[int]:
        """The layers whose output is held by a variable of the model's code that ends before forward does."""
        return {maker for makers in self.indexed.releases.values() for maker in makers}

    @cached_property
    def knows_host(self) -> bool:
        """Whether the graph has host times, so that memory is counted when the host issues."""
        return self.graph.says("host_forward_s")

    @cached_property
    def group_reads(self) -> list[Sequence[int]]:
        """By group: the tensors that it reads and does not make."""
        indexed = self.indexed
        return [
            indexed.reads[members[0]]
            if len(members) == 1
            else sorted({t for layer in members for t in indexed.reads[layer] if self._made_in(t) != group})
            for group, members in enumerate(indexed.members)
        ]

    @cached_property
    def group_makes(self) -> list[Sequence[int]]:
        """By group: the tensors that it makes."""
        makes = self.indexed.makes
        return [
            makes[members[0]] if len(members) == 1 else [t for layer in members for t in makes[layer]]
            for members in self.indexed.members
        ]

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """By group: the groups that it exchanges tensors with."""
        indexed = self.indexed
        near: list[dict[int, None]] = [{} for _ in indexed.members]
        for maker, consumers in zip(indexed.source, indexed.consumers, strict=True):
            for reader in consumers if maker != FROM_HOST else ():
                one, other = indexed.group_of[maker], indexed.group_of[reader]
                if one != other:
                    near[one][other] = near[other][one] = None
        return [list(groups) for groups in near]

    @cached_property
    def followers(self) -> list[list[int]]:
        """By layer: the layers that depend on it, by a tensor or by an edge without one."""
        indexed = self.indexed
        return [
            sorted({reader for tensor in made for reader in indexed.consumers[tensor]} | set(after))
            for made, after in zip(indexed.makes, indexed.after, strict=True)
        ]

    @cached_property
    def work_s(self) -> list[list[float]]:
        """`work_s[device][layer]`: seconds of a layer's part of the step."""
        names = self.indexed.names
        forward = seconds_by_device(self.graph, names, self.cluster.devices, "forward_s")
        if not self.training:
            return forward
        backward = seconds_by_device(self.graph, names, self.cluster.devices, "backward_s")
        return [[f + b for f, b in zip(*pair, strict=True)] for pair in zip(forward, backward, strict=True)]

    def travel_s(self, source: int, target: int, size_bytes: int) -> float:
        """Seconds that a tensor's transfer costs in a step; in training, its gradient's as well."""
        there_s = transfer_s(self.links[source][target], size_bytes)
        if not self.training or source == self.host:
            return there_s
        return there_s + transfer_s(self.links[target][source], size_bytes)

    def mean_travel_s(self, size_bytes: int) -> float:
        """The mean of `travel_s` over all pairs of devices."""
        pairs, ways = self._pairs
        seconds = {way: self.travel_s(*pair, size_bytes) for way, pair in ways.items()}
        return sum([seconds[way] for way in pairs]) / len(pairs)

    @cached_property
    def _pairs(self) -> tuple[list[int], dict[int, tuple[int, int]]]:
        """By pair of devices, a number that pairs with equal links share; and a pair for each number."""
        pairs = [(a, b) for a in self.devices for b in self.devices if a != b]
        number: dict[tuple[Link, Link], int] = {}
        ways = [number.setdefault((self.links[a][b], self.links[b][a]), len(number)) for a, b in pairs]
        return ways, dict(zip(ways, pairs, strict=True))

    def plan(self, placer: str, device_of: Sequence[int], order: Sequence[int], note: str = "") -> Plan:
        """Make the plan."""
        names, group_of, devices = self.indexed.names, self.indexed.group_of, self.cluster.names
        return Plan(
            self.graph,
            self.cluster,
            {name: devices[device_of[group]] for name, group in zip(names, group_of, strict=True)},
            tuple([names[layer] for layer in self.launch_rules.launchable(order)]),
            placer=placer,
            candidates=(Candidate(placer, note=note),) if note else (),
        )

    @cached_property
    def launch_rules(self) -> LaunchRules:
        """Which orders can be kept."""
        return LaunchRules(self.indexed.costs, self.followers)

    def _made_in(self, tensor: int) -> int:
        maker = self.indexed.source[tensor]
        return self.indexed.group_of[maker] if maker != FROM_HOST else ANYWHERE

    def _stays(self) -> list[bool]:
        """By layer, whether its output stays to the end: no layer reads it, or a view of it is returned."""
        indexed = self.indexed
        stays = [not tensors for tensors in indexed.makes]
        for layer in reversed(range(len(indexed))):
            if stays[layer] and indexed.is_view[layer]:
                for tensor in indexed.reads[layer]:
                    if indexed.source[tensor] != FROM_HOST:
                        stays[indexed.source[tensor]] = True
        return stays

    def _pins(self) -> list[int]:
        names = self.cluster.names
        pins = [ANYWHERE] * len(self.indexed.members)
        for layer, (name, costs) in enumerate(zip(self.indexed.names, self.indexed.costs, strict=True)):
            pin = costs.pin
            if pin is None:
                continue
            if pin not in names:
                known = ", ".join(names)
                raise PlacementError(f"{name} is pinned to {pin!r}: the devices are {known}", layer=name)
            group, device = self.indexed.group_of[layer], names.index(pin)
            if pins[group] not in (ANYWHERE, device):
                raise PlacementError(
                    f"{name} is pinned to {pin!r}, and a layer that must share its device to "
                    f"{names[pins[group]]!r}: pin them to one device",
                    layer=name,
                )
            pins[group] = device
        return pins
