"""No step can be shorter: what every plan of a graph on a cluster takes at least.

Three reasons, each for forward and for backward, which do not overlap:

- path: layers that depend on each other run one after the other, each on its fastest device;
- work: all layers share the devices. Were every layer divisible, devices of speed v would share
  work w in w / sum(v); for times by kind of device the same weights still give a bound (they are a
  feasible solution of the dual of the scheduling program on unrelated machines);
- group: layers that share a device run there one after the other.
"""

from collections.abc import Sequence

from baechi.cost.indexed import IndexedGraph, seconds_by_device
from baechi.records import Cluster, LayerGraph


def shortest_step_s(graph: LayerGraph, cluster: Cluster) -> float:
    """A time that no step of the graph on the cluster can beat.

    Args:
        graph: the layer graph.
        cluster: the devices.

    Returns:
        Seconds; in training, of forward and backward.
    """
    indexed = IndexedGraph.of(graph)
    phases = ("forward_s", "backward_s") if graph.training else ("forward_s",)
    return sum(
        [
            _shortest_s(indexed, seconds_by_device(graph, indexed.names, cluster.devices, p), cluster)
            for p in phases
        ]
    )


def _shortest_s(indexed: IndexedGraph, seconds: Sequence[Sequence[float]], cluster: Cluster) -> float:
    speeds = [device.speed for device in cluster.devices]
    weighted = [[speed / sum(speeds) * s for s in row] for speed, row in zip(speeds, seconds, strict=True)]
    work_s = sum([min(times) for times in zip(*weighted, strict=True)])
    groups_s = [min([sum([row[m] for m in members]) for row in seconds]) for members in indexed.members]
    return max(work_s, _path_s(indexed, seconds), *groups_s) if groups_s else 0.0


def _path_s(indexed: IndexedGraph, seconds: Sequence[Sequence[float]]) -> float:
    """The longest path through the graph, every layer on its fastest device."""
    end_s = [0.0] * len(indexed)
    for layer, times in enumerate(zip(*seconds, strict=True)):
        makers = [indexed.source[tensor] for tensor in indexed.reads[layer]]
        start_s = max([end_s[maker] for maker in makers if maker >= 0], default=0.0)
        end_s[layer] = start_s + min(times)
    return max(end_s, default=0.0)
