"""What travels between devices, and how long that takes.

A tensor travels to a device once, however many layers read it there: transfers are keyed by
(source layer, tensor, target device). The original charged every edge by itself, in time and in
memory. Edges that only order two layers carry nothing; edges from inputs are uploads from the host.
Downloads of outputs to the host are not modelled here: a plan does not know what is returned.
"""

from math import ceil
from typing import Any, NamedTuple

from baechi.records import Cluster, LayerGraph, Link
from baechi.records.cluster import HOST


class Tensor(NamedTuple):
    """An output of a node, with the layers that read it.

    Args:
        source: the node that makes it; an input if it comes from the host.
        size_bytes: what travels, the largest of its edges.
        consumers: the layers that read it, in code order.
    """

    source: str
    size_bytes: int
    consumers: tuple[str, ...]


def transfer_s(link: Link, size_bytes: float) -> float:
    """Seconds of a transfer.

    Args:
        link: the link it takes.
        size_bytes: what travels; an empty tensor still takes the link's latency.
    """
    return link.latency_s + size_bytes / link.bytes_per_s


def tensors(graph: LayerGraph) -> list[Tensor]:
    """The tensors that layers hand to each other.

    Args:
        graph: the layer graph. Edges of one source with the same `tensor` are one tensor; edges
            without the attribute are one tensor together; `order_only` edges are none.

    Returns:
        Tensors by the code order of their sources.
    """
    found = []
    for source, edges in graph.adjacency():
        if not any(["tensor" in data or "order_only" in data for data in edges.values()]):
            if edges:  # one tensor: nearly always
                largest = max([data.get("bytes") or 0 for data in edges.values()])
                found.append(Tensor(source, ceil(largest), tuple(edges)))
            continue
        sizes: dict[Any, float] = {}
        readers: dict[Any, list[str]] = {}
        for target, data in edges.items():
            if data.get("order_only"):
                continue
            key, size = data.get("tensor"), data.get("bytes") or 0
            key = tuple(key) if isinstance(key, list) else key  # as JSON gives it back
            if key not in sizes:
                sizes[key], readers[key] = size, [target]
            else:
                sizes[key] = max(sizes[key], size)
                readers[key].append(target)
        for key, names in readers.items():
            found.append(Tensor(source, ceil(sizes[key]), tuple(names)))
    return found


def link_table(cluster: Cluster) -> list[list[Link]]:
    """The links by index, for inner loops.

    Args:
        cluster: the devices.

    Returns:
        `table[source][target]`; devices by their place in the cluster, the host after the last.
    """
    ends = (*cluster.names, HOST)
    return [[cluster.link_between(source, target) for target in ends] for source in ends]
