"""All placers, as a user calls them: by name, within memory."""

from baechi.place.registry import PLACERS
from baechi.records import Cluster, LayerGraph, Plan
from baechi.verbs.plans import place

EVERY = (*PLACERS, "random:0", "random:1", "auto:0", "auto:1")
"""Each placer of the registry; `auto:1` is `"auto"` at effort 1."""


def plan_by(placer: str, graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None) -> Plan:
    """The plan of a placer."""
    name, _, number = placer.partition(":")
    if name == "auto":
        return place(graph, cluster, "auto", effort=int(number), optimizer=optimizer)
    return place(graph, cluster, placer, optimizer=optimizer)
