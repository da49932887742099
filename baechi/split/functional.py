"""Functional ops that read the weight of a layer that is split: they are split as the layers they stand for.

    wte ──▶ blocks ──▶ F.linear(h, wte.weight)    >>    wte ──▶ blocks ──▶ Linear, its weight tied to wte's
     └─────────────weight─────────────┘

So tied layers are split alike, whether the second one is a module or a function. Nothing here needs torch.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from baechi.records.graph import LayerGraph
from baechi.torchlib.shards.table import WEIGHT_OPS

_WEIGHT = "weight"

_ITEM_BYTES = (1, 2, 4, 8)


class _Reader(NamedTuple):
    """A functional op that reads a weight.

    Args:
        holder: the layer call that has the weight.
        names: of the weight.
        shape: of the weight.
    """

    holder: str
    names: tuple[str, ...]
    shape: list[int]


def with_ops_as_layers(graph: LayerGraph, layers: Iterable[str]) -> LayerGraph:
    """Put layers in the place of functional ops that read weights of some layers."""
    ops = {
        name: costs.reads for name, costs in graph.placed_costs() if costs.type in WEIGHT_OPS and costs.reads
    }
    readers = {name: found for layer in layers if ops for name, found in _readers(graph, layer, ops)}
    if not readers:
        return graph
    made = LayerGraph()
    made.graph.update(graph.graph)
    made.add_nodes_from([(name, dict(data)) for name, data in graph.nodes(data=True)])
    made.add_edges_from([(source, target, dict(data)) for source, target, data in graph.edges(data=True)])
    for name, found in readers.items():
        _become_layer(made, name, found)
    return made


def _readers(
    graph: LayerGraph, layer: str, ops: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, _Reader]]:
    """Of some ops, by what each reads, those that read a weight of a layer, or one that is tied with it."""
    calls = [costs.splits for name, costs in graph.placed_costs() if graph.module_of(name) == layer]
    splits: Mapping[str, Any] = next(filter(None, calls), {"shapes": {}, "tied": {}})
    for weight, shape in splits["shapes"].items():
        names = (f"{layer}.{weight}", *splits["tied"].get(weight, ()))
        holder = _holder(graph, names)
        for name, reads in ops.items() if holder else ():
            found = [(tuple(how["shape"]), how["place"]) for own, how in reads.items() if own in names]
            if found == [(tuple(shape), 1)]:
                yield name, _Reader(holder, names, list(shape))


def _holder(graph: LayerGraph, names: Iterable[str]) -> str:
    """The layer call that has a weight; empty if something else reads it first."""
    for name, costs in graph.placed_costs():
        if not set(names).isdisjoint(costs.weights or ()):
            return name if costs.kind == "layer" else ""
    return ""


def _become_layer(made: LayerGraph, name: str, reader: _Reader) -> None:
    data, holder = made.nodes[name], made.nodes[reader.holder]
    kept = {key: value for key, value in data.items() if key not in ("colocate", "follows", "twin")}
    group, joined = holder.setdefault("colocate", reader.holder), data.get("colocate")
    data.clear()
    data |= kept | {
        "kind": "layer",
        "module": name,
        "type": WEIGHT_OPS[kept["type"]],
        "weights": list(kept.get("weights", ())),  # a bias, which the first shard has
        "colocate": group,
        "splits": {"shapes": {_WEIGHT: reader.shape}, "tied": {_WEIGHT: list(reader.names)}, "refused": ""},
    }
    for _, other in made.nodes(data=True):
        if joined is not None and other.get("colocate") == joined:
            other["colocate"] = group
        for weight, names in _weights(other).items():
            if not names.isdisjoint(reader.names):
                tied = dict(other["splits"]["tied"])
                tied[weight] = [*tied.get(weight, ()), f"{name}.{_WEIGHT}"]
                other["splits"] = {**other["splits"], "tied": tied} if other is not data else other["splits"]
    _without_weight(made, name, reader)


def _weights(data: Mapping[str, Any]) -> dict[str, set[str]]:
    """By weight of a layer that can be split, its names."""
    splits = data.get("splits")
    if splits is None:
        return {}
    return {
        weight: {f"{data['module']}.{weight}", *splits["tied"].get(weight, ())} for weight in splits["shapes"]
    }


def _without_weight(made: LayerGraph, name: str, reader: _Reader) -> None:
    """The weight does not travel."""
    if not made.has_edge(reader.holder, name):  # it comes from an op that has written it
        return
    edge = made.edges[reader.holder, name]
    elements = prod(reader.shape)
    sizes: Mapping[str, float] = edge.get("parts") or {}
    weight = next((tensor for tensor, size in sizes.items() if size / elements in _ITEM_BYTES), None)
    if weight is None:
        made.remove_edge(reader.holder, name)
        return
    left = {tensor: size for tensor, size in sizes.items() if tensor != weight}
    edge["bytes"], edge["tensor"] = sum(left.values()), "+".join(sorted(left))
    edge.pop("copies", None)
    edge.pop("parts")
    if len(left) > 1:
        edge["parts"] = left
