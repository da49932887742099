"""Lower bounds on the step time and on the fullest device, for every plan of a graph on a cluster.

Five bounds on time, each for forward and for backward, which do not overlap:

- path: layers that depend on each other run one after the other, each on its fastest device
  (`path_bounds`);
- work: all layers share the devices. Were every layer divisible, devices of speed v would share
  work w in w / sum(v); for times by kind of device the same weights still give a bound (they are a
  feasible solution of the dual of the scheduling program on unrelated machines);
- group: layers that share a device run there one after the other;
- forced cut: a connected part that no device can hold is cut somewhere. The step is no shorter than
  the longest path through the tensor where that cut costs least;
- host: it issues one kernel after the other (`issue_bounds`).

Two bounds on memory, when forward is over and when the optimizer steps: all that stays has to lie
somewhere, and every group lies on one device.
"""

from collections.abc import Sequence

import networkx as nx

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph, seconds_by_device
from baechi.cost.memory import footprints
from baechi.cost.transfer import link_table, transfer_s
from baechi.records import Cluster, LayerGraph
from baechi.simulate.issue_bounds import shortest_issue_s
from baechi.simulate.path_bounds import (
    Seconds,
    longest_backward_s,
    longest_forward_s,
    makers_of,
    soonest_ends_s,
)


def shortest_step_s(graph: LayerGraph, cluster: Cluster) -> float:
    """A time that no step of the graph on the cluster can beat."""
    indexed = IndexedGraph.of(graph, apart=True)
    cut = _must_be_cut(graph, indexed, cluster)
    phases = (("forward_s", longest_forward_s), ("backward_s", longest_backward_s))
    computed_s, issued_s = [], []
    for (phase, longest_s), issue_s in zip(
        phases if graph.training else phases[:1], shortest_issue_s(indexed, cluster), strict=False
    ):
        seconds = _on_devices_s(graph, indexed, cluster, phase)
        longest_cut_s = _cut_s(indexed, seconds, cluster, cut)
        bounds_s = longest_s(indexed, seconds, cluster), _shared_s(indexed, seconds, cluster), longest_cut_s
        computed_s.append(max(bounds_s))
        issued_s.append(issue_s)
    if indexed.outputs_stay:  # the host issues backward while devices run forward
        return max(sum(computed_s), sum(issued_s))
    return sum(map(max, computed_s, issued_s))


def least_peak_bytes(graph: LayerGraph, cluster: Cluster) -> int:
    """Bytes that the fullest device of any plan has at least."""
    indexed = IndexedGraph.of(graph, apart=True)
    bounds = [0]
    for kept in _kept_bytes(graph, indexed):
        groups = [sum([kept[layer] for layer in members]) for members in indexed.members]
        bounds += [-(-sum(groups) // len(cluster)), *groups]
    return max(bounds)


def _kept_bytes(graph: LayerGraph, indexed: IndexedGraph) -> tuple[list[int], list[int]]:
    """By layer, the bytes it holds when forward is over, and when the optimizer steps."""
    table = footprints(graph)
    parts = [table[name] for name in indexed.names]
    return (
        [part.always_bytes + part.saved_bytes for part in parts],
        [part.resident_bytes for part in parts],
    )


def _on_devices_s(graph: LayerGraph, indexed: IndexedGraph, cluster: Cluster, phase: str) -> Seconds:
    """By device and layer, its seconds; none of glue that the host may run itself."""
    seconds = seconds_by_device(graph, indexed.names, cluster.devices, phase)
    on_host = [costs.on_host for costs in indexed.costs]
    return [[0.0 if skip else s for skip, s in zip(on_host, row, strict=True)] for row in seconds]


def _shared_s(indexed: IndexedGraph, seconds: Seconds, cluster: Cluster) -> float:
    """All work, shared by all devices; or the longest group, which one device runs."""
    speeds = [device.speed for device in cluster.devices]
    weighted = [[speed / sum(speeds) * s for s in row] for speed, row in zip(speeds, seconds, strict=True)]
    work_s: float = sum([min(times) for times in zip(*weighted, strict=True)])
    groups_s = [min([sum([row[m] for m in members]) for row in seconds]) for members in indexed.members]
    return max([work_s, *groups_s])


def _must_be_cut(graph: LayerGraph, indexed: IndexedGraph, cluster: Cluster) -> list[set[int]]:
    """Sets of layers that tensors connect, each too large for every device."""
    together: nx.Graph[int] = nx.Graph()
    together.add_nodes_from(range(len(indexed)))
    for maker, readers in zip(indexed.source, indexed.consumers, strict=True):
        together.add_edges_from([(maker, reader) for reader in readers if maker != FROM_HOST])
    moments, most = _kept_bytes(graph, indexed), max([device.memory_bytes for device in cluster.devices])
    parts = nx.connected_components(together)
    return [part for part in parts if any(sum([kept[n] for n in part]) > most for kept in moments)]


def _cut_s(indexed: IndexedGraph, seconds: Seconds, cluster: Cluster, cut: Sequence[set[int]]) -> float:
    """The longest path through the cheapest tensor to cut; of several parts, the largest such value."""
    if not cut or len(cluster) < 2:
        return 0.0
    layers = range(len(indexed))
    readers = [[reader for tensor in made for reader in indexed.consumers[tensor]] for made in indexed.makes]
    heads_s = soonest_ends_s(layers, seconds, waits=makers_of(indexed))
    tails_s = soonest_ends_s(reversed(layers), seconds, waits=readers)
    table, devices = link_table(cluster), range(len(cluster))
    links = {table[here][there] for here in devices for there in devices if here != there}
    dearest_s = 0.0
    for part in cut:
        ways_s = []
        for tensor, maker in enumerate(indexed.source):
            if maker in part:
                travel_s = min([transfer_s(link, indexed.size_bytes[tensor]) for link in links])
                after_s = min([tails_s[reader] for reader in indexed.consumers[tensor]])
                ways_s.append(heads_s[maker] + travel_s + after_s)
        dearest_s = max(dearest_s, min(ways_s, default=0.0))
    return dearest_s
