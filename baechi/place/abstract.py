"""The interface of placers."""

from typing import Protocol

from baechi.records import Cluster, LayerGraph, Plan


class Placer(Protocol):
    """A callable with this signature. It takes records, returns a record, and has no side effects."""

    def __call__(self, graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
        """Choose devices and orders.

        Args:
            graph: the layer graph; not changed.
            cluster: the devices.
            optimizer: name of the optimizer whose state counts in training; `graph.graph["optimizer"]`
                unless given.

        Returns:
            A plan that fits every device's memory. Equal arguments give equal plans.

        Raises:
            PlacementError: no such plan was found.
            ValueError: the optimizer is unknown.
        """
