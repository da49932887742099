"""What travels between devices, and how long that takes.

A tensor travels to a device once, however many layers read it there: transfers are keyed by
(source layer, tensor, target device). The paper's code charged time and memory for every edge. Edges that
only order two layers carry nothing; edges from inputs are uploads from the host. What the model returns
goes to the host, where its inputs come from (`returned` of a node).
"""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Any, NamedTuple

from baechi.records import Cluster, LayerGraph, Link
from baechi.records.cluster import HOST
from baechi.records.edge_costs import EdgeCosts


class Tensor(NamedTuple):
    """An output of a node, with the layers that read it.

    Args:
        source: the node that makes it; an input if it comes from the host.
        size_bytes: what travels, the largest of its edges.
        copy_bytes: the memory of its copy on another device.
        consumers: the layers that read it, in code order.
        ahead: whether it is sent as soon as it is made, to every device that will read it; else when
            a layer there asks for it.
        graded: the consumers from which a gradient comes back.
        homeward: the consumers whose gradient goes back to the host.
        keepers: the consumers for whose backward autograd may keep it.
        held: whether it stays to the end of forward anyway.
        brief: whether it is gone behind its last reader, though the memory that it shows may stay.
    """

    source: str
    size_bytes: int
    copy_bytes: int
    consumers: tuple[str, ...]
    ahead: bool = True
    graded: tuple[str, ...] = ()
    homeward: tuple[str, ...] = ()
    keepers: tuple[str, ...] = ()
    held: bool = False
    brief: bool = False


def transfer_s(link: Link, size_bytes: float) -> float:
    """Seconds of a transfer."""
    return link.latency_s + size_bytes / link.bytes_per_s


def _parts(edge: EdgeCosts) -> Iterable[tuple[Any, float, float]]:
    """The tensors of an edge, with what travels and the memory of its copy: one, if it says no more."""
    copies: Mapping[Any, float] = edge.copies or {}
    if edge.parts:
        return [(key, size, copies.get(key, size)) for key, size in edge.parts.items()]
    key = tuple(edge.tensor) if isinstance(edge.tensor, list) else edge.tensor  # lists are JSON's
    return [(key, edge.bytes, copies.get(key, edge.bytes))]


def tensors(graph: LayerGraph, *, spread: bool = False, alone: bool = False) -> list[Tensor]:
    """The tensors that layers hand to each other.

    With `spread`, as a model on several devices has them: functional ops on inputs run on the host. With
    `alone`, as one on a single device: inputs travel whole.
    """
    found: list[Tensor] = []
    on_host = {name for name, costs in graph.placed_costs() if costs.on_host} if spread else ()
    for source, edges in graph.adjacency():
        whole_bytes = graph.nodes[source].get("output_bytes", 0)
        if alone and whole_bytes and graph.nodes[source]["kind"] == "input":
            found += _whole(source, ceil(whole_bytes), edges)
            continue
        sizes = [data["bytes"] for data in edges.values() if len(data) == 1 and data.get("bytes")]
        if len(sizes) == len(edges) and not spread:
            if edges:  # all edges carry the same tensor, and say no more: nearly always
                readers = tuple(edges)
                size_bytes = ceil(max(sizes))
                found.append(Tensor(source, size_bytes, size_bytes, readers, graded=readers, keepers=readers))
            continue
        of_source: dict[Any, list[tuple[str, float, float, EdgeCosts]]] = {}
        for target, data in edges.items():
            edge = EdgeCosts.of(data)
            if not edge.order_only and target not in on_host:
                for key, sent, held in _parts(edge):
                    of_source.setdefault(key, []).append((target, sent, held, edge))
        for reads in of_source.values():
            found.append(
                Tensor(
                    source,
                    ceil(max([sent for _, sent, _, _ in reads])),
                    ceil(max([held for _, _, held, _ in reads])),
                    tuple([target for target, *_ in reads]),
                    ahead=not any([edge.on_demand for *_, edge in reads]),
                    graded=tuple([target for target, *_, edge in reads if not edge.no_grad]),
                    homeward=tuple([target for target, *_, edge in reads if edge.grad_home]),
                    keepers=tuple([target for target, *_, edge in reads if not edge.unsaved]),
                    held=all([edge.held for *_, edge in reads]),
                    brief=any([edge.brief for *_, edge in reads]),
                )
            )
    return found


def _whole(source: str, size_bytes: int, edges: Mapping[str, Any]) -> Iterator[Tensor]:
    """An input that travels whole, whatever parts of it are read."""
    read = {target: edge for target, data in edges.items() if not (edge := EdgeCosts.of(data)).order_only}
    if read:
        yield Tensor(
            source,
            size_bytes,
            size_bytes,
            tuple(read),
            ahead=False,
            graded=tuple([target for target, edge in read.items() if not edge.no_grad]),
            homeward=tuple([target for target, edge in read.items() if edge.grad_home]),
            keepers=tuple([target for target, edge in read.items() if not edge.unsaved]),
            held=True,
        )


def link_table(cluster: Cluster) -> list[list[Link]]:
    """The links by index, for inner loops."""
    ends = (*cluster.names, HOST)
    return [[cluster.link_between(source, target) for target in ends] for source in ends]
