"""A plan with everything that simulating it needs: indexes, devices, bytes."""

from dataclasses import dataclass
from functools import cached_property

from baechi.cost.indexed import IndexedGraph
from baechi.cost.memory import Footprint, footprints
from baechi.records import Plan


@dataclass(frozen=True)
class Stage:
    """Where a plan is played. Layers and devices are indexes; the host's is that after the last.

    Args:
        plan: the plan.
        indexed: its graph.
        device_of: by layer, its device.
        place: by layer, its place in the plan's order.
        footprints: by layer.
    """

    plan: Plan
    indexed: IndexedGraph
    device_of: list[int]
    place: list[int]
    footprints: list[Footprint]

    @classmethod
    def of(cls, plan: Plan, optimizer: str | None = None) -> "Stage":
        """Index a plan.

        Args:
            plan: the plan.
            optimizer: whose state counts in training; that of the graph unless given.

        Raises:
            ValueError: the optimizer is unknown.
        """
        indexed = IndexedGraph.of(plan.graph)
        devices = {name: index for index, name in enumerate(plan.cluster.names)}
        places = {name: index for index, name in enumerate(plan.order)}
        table = footprints(plan.graph, optimizer)
        return cls(
            plan,
            indexed,
            [devices[plan.device_of[name]] for name in indexed.names],
            [places[name] for name in indexed.names],
            [table[name] for name in indexed.names],
        )

    @property
    def host(self) -> int:
        """The host's index."""
        return len(self.plan.cluster)

    @cached_property
    def queues(self) -> list[list[int]]:
        """By device, its layers in the plan's order."""
        queues: list[list[int]] = [[] for _ in self.plan.cluster.devices]
        for layer in sorted(range(len(self.place)), key=self.place.__getitem__):
            queues[self.device_of[layer]].append(layer)
        return queues
