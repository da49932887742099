"""A layer graph whose layers are split: shards and a join in place of a layer.

              head                     head[0] ──┐
    mid ──▶ 128,000 x 4,096   >>   mid ┼ head[1] ──┼─▶ head[join] ──▶ cross_entropy
                                       └ head[2] ──┘

A shard has its share of the layer's bytes and seconds; a join has the layer's output; of a layer that is
split along rows a broadcast has the weights. Dry runs, and runs, show what they really take. Layers that
share a weight are split together, and shards of them that read the same shard of it share a device;
functional ops that read it are such layers, too (`functional`). Nothing here needs torch.
"""

from collections.abc import Mapping

from baechi.errors import PlanError
from baechi.records.device_map import ROOT
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts
from baechi.split.chains import link_chains
from baechi.split.costs import (
    broadcast_costs,
    broadcast_edge,
    join_costs,
    mover_of,
    part_of_edge,
    shard_costs,
    splits_of,
)
from baechi.split.dimension import SplitDimension
from baechi.split.functional import with_ops_as_layers
from baechi.split.groups import regrouped
from baechi.split.sharded_outputs import keep_logits_sharded
from baechi.split.spec import LayerSpec, Sharding, sharding_of
from baechi.split.table import rule_named


def split(graph: LayerGraph, layers: Mapping[str, LayerSpec | Sharding]) -> LayerGraph:
    """Split layers of a graph."""
    asked = {name: sharding_of(spec, sizes_of(graph, name), name) for name, spec in layers.items()}
    cut = [name for name, sharding in asked.items() if _dimension_of(graph, name, sharding).cuts]
    graph = with_ops_as_layers(graph, cut)
    shardings: dict[str, Sharding] = {}
    for name, sharding in asked.items():
        for module, own in _with_ties(graph, name, sharding).items():
            if (
                shardings.setdefault(module, own).sizes != own.sizes
                or shardings[module].dimension != own.dimension
            ):
                raise PlanError(
                    f"{module} is to be split in two ways: as it says, and as a layer that shares its "
                    "weight: name one of them"
                )
    _check_readers(graph, shardings)
    return _rewritten(graph, shardings)


def _check_readers(graph: LayerGraph, shardings: Mapping[str, Sharding]) -> None:
    """Refuse to cut a weight that something else reads before its layer does."""
    cut = {
        f"{layer}.{weight}": layer
        for layer, sharding in shardings.items()
        for weight in _dimension_of(graph, layer, sharding).cuts
    }
    for name, costs in graph.placed_costs():
        layer = next((cut[weight] for weight in costs.weights or () if weight in cut), None)
        if layer is not None and graph.module_of(name) not in shardings:
            raise PlanError(
                f"{layer} cannot be split: {name} reads its weight, too, and needs all of it: leave {layer} "
                "out of split="
            )


def sizes_of(graph: LayerGraph, layer: str) -> dict[str, int]:
    """By dimension along which a layer can be split, how long it is."""
    calls = _calls(graph, layer)
    if layer in ("", ROOT) and _calls(graph, ROOT):
        raise PlanError("the model itself is the layer to split: put it into a module, as one of its layers")
    if not calls:
        raise PlanError(
            f"the graph has no layer {layer!r} to split{_within(graph, layer)}: it has what the model calls"
        )
    return sizes_by_call(graph.costs(calls[0]), layer)


def sizes_by_call(costs: LayerCosts, layer: str) -> dict[str, int]:
    """The same, of the costs of one of its calls."""
    if costs.shard is not None or costs.joins is not None:
        raise PlanError(f"{layer} is a shard already: split its layer into smaller shards instead")
    if costs.splits is None:
        raise PlanError(
            f"{layer} ({costs.type}) cannot be split: no rule says how. Leave it out of split=, or add one "
            "(baechi.register_split); along rows only if none of them depends on others"
        )
    if costs.splits["refused"]:
        raise PlanError(f"{layer} ({costs.type}) cannot be split: {costs.splits['refused']}")
    shapes, dims = costs.splits["shapes"], rule_named(str(costs.type)).dims
    found = {}
    for dim, how in dims.items():
        cut = next(((weight, axis) for weight, axis in how.cuts.items() if weight in shapes), None)
        if how.length:
            found[dim] = costs.splits["lengths"][dim]
        elif cut is not None:
            found[dim] = shapes[cut[0]][cut[1]]
        elif "rows" in costs.splits:  # no functional op says it
            found[dim] = costs.splits["rows"]
    return found


def cuts_weights(graph: LayerGraph, layer: str) -> bool:
    """Whether a layer has less of its weights on each device when it is split as `{layer: number}` says."""
    rule = rule_named(str(graph.costs(_calls(graph, layer)[0]).type))
    return bool(next(iter(rule.dims.values())).cuts)


def _within(graph: LayerGraph, layer: str) -> str:
    below = [
        graph.module_of(name) for name in graph.placed() if graph.module_of(name).startswith(f"{layer}.")
    ]
    above = {
        graph.module_of(name): f" ({costs.whole_because})" if costs.whole_because else ""
        for name, costs in graph.placed_costs()
        if costs.kind == "layer" and layer.startswith(f"{graph.module_of(name)}.")
    }
    tied = [
        graph.module_of(name)
        for name, costs in graph.placed_costs()
        for others in (costs.splits or {"tied": {}})["tied"].values()
        if layer in [other.rpartition(".")[0] for other in others]
    ]
    if tied:
        return f": its weight is that of {tied[0]}; name that one"
    if below:
        return f": it has layers inside ({', '.join(dict.fromkeys(below[:3]))}); name one of these"
    return "".join([f": it is inside {name}, which is one layer{why}" for name, why in above.items()])


def _calls(graph: LayerGraph, layer: str) -> list[str]:
    names = [name for name in graph if graph.module_of(name) == layer]
    costs = map(graph.costs, names)
    return [name for name, one in zip(names, costs, strict=True) if one.kind == "layer" and not one.unread]


def _with_ties(graph: LayerGraph, layer: str, sharding: Sharding) -> dict[str, Sharding]:
    """The sharding of a layer, and those of layers that share a weight which it cuts."""
    found, waiting = {layer: sharding}, [layer]
    while waiting:
        module = waiting.pop()
        costs = graph.costs(_calls(graph, module)[0])
        assert costs.splits is not None
        cuts = rule_named(str(costs.type)).dims[found[module].dimension].cuts
        for weight, axis in cuts.items():
            for other in costs.splits["tied"].get(weight, ()):
                owner, _, local = other.rpartition(".")
                if not _calls(graph, owner):
                    continue  # another name of it: of a module that does not run, or does not read it
                if owner in found:
                    _check_same_axis(graph, module, owner, found[owner], local, axis)
                    continue
                found[owner] = Sharding(
                    _dimension(graph, module, owner, local, axis), sharding.sizes, sharding.devices
                )
                waiting.append(owner)
    return found


def _check_same_axis(
    graph: LayerGraph, one: str, other: str, sharding: Sharding, weight: str, axis: int
) -> None:
    kind = str(graph.costs(_calls(graph, other)[0]).type)
    if rule_named(kind).dims[sharding.dimension].cuts.get(weight) != axis:
        raise PlanError(
            f"{one} and {other} share a weight, and are to be split along different axes of it: name "
            "one of them"
        )


def _dimension(graph: LayerGraph, layer: str, owner: str, weight: str, axis: int) -> str:
    """The dimension of a tied layer that cuts an axis of the weight that it shares."""
    sizes_of(graph, owner)
    for dim, how in rule_named(str(graph.costs(_calls(graph, owner)[0]).type)).dims.items():
        if how.cuts.get(weight) == axis:
            return dim
    raise PlanError(
        f"{layer} cannot be split: {owner}, which shares its weight, cannot be split along that axis: split "
        f"along another one, or leave {layer} out of split="
    )


def _rewritten(graph: LayerGraph, shardings: Mapping[str, Sharding]) -> LayerGraph:
    made = LayerGraph()
    made.graph.update(graph.graph)
    heads: dict[str, str] = {}  # by node that is split: its join
    broadcasts: dict[str, str] = {}
    shards: dict[str, list[str]] = {}
    mover = mover_of(graph)
    for name, data in graph.nodes(data=True):
        module = graph.module_of(name)
        sharding = (
            shardings.get(module) if data.get("kind", "layer") == "layer" and not data.get("unread") else None
        )
        if sharding is None:
            made.add_nodes_from([(name, data)])
            continue
        call = name[len(module) :]
        shards[name] = [f"{module}[{number}]{call}" for number in range(len(sharding.sizes))]
        heads[name] = f"{module}[join]{call}"
        if not _dimension_of(graph, module, sharding).cuts and splits_of(graph.costs(name))["shapes"]:
            broadcasts[name] = f"{module}[broadcast]{call}"
            made.add_node(broadcasts[name], **broadcast_costs(graph, name, sharding, mover))
        for number, shard in enumerate(shards[name]):
            made.add_node(shard, **shard_costs(graph, name, sharding, number))
        made.add_node(heads[name], **join_costs(graph, name, sharding, mover))
    _rename(made, heads)
    for source, target, data in graph.edges(data=True):
        for reader in shards.get(target, [target]):
            made.add_edges_from([(heads.get(source, source), reader, data)])
    for name, own in shards.items():
        _edges_inside(graph, made, name, own, heads[name], shardings[graph.module_of(name)])
        if name in broadcasts:
            made.add_edges_from([(broadcasts[name], shard, broadcast_edge(graph, name)) for shard in own])
    regrouped(graph, made, shards, heads, broadcasts)
    dimensions = {layer: _dimension_of(graph, layer, sharding) for layer, sharding in shardings.items()}
    after = {
        layer: sharding
        for layer, sharding in shardings.items()
        if dimensions[layer].join == "cat" and dimensions[layer].cuts
    }
    keep_logits_sharded(made, shards, heads, after)
    link_chains(made, shards, heads, shardings, dimensions)
    return LayerGraph.from_networkx(made)


def _dimension_of(graph: LayerGraph, layer: str, sharding: Sharding) -> SplitDimension:
    return rule_named(str(graph.costs(_calls(graph, layer)[0]).type)).dims[sharding.dimension]


def _rename(made: LayerGraph, heads: Mapping[str, str]) -> None:
    """What names a node that is split names its join."""
    for _, data in made.nodes(data=True):
        for attribute in ("held_until", "follows"):
            if data.get(attribute) in heads:
                data[attribute] = heads[data[attribute]]
        if data.get("twin") in heads:
            del data["twin"]


def _edges_inside(
    graph: LayerGraph, made: LayerGraph, name: str, shards: list[str], head: str, sharding: Sharding
) -> None:
    how = rule_named(str(graph.costs(name).type)).dims[sharding.dimension]
    total, start = sum(sharding.sizes), 0
    for shard, size in zip(shards, sharding.sizes, strict=True):
        if how.takes is not None:
            for source in list(made.predecessors(shard)):
                edge = made.edges[source, shard]
                part_of_edge(edge, size / total, f"{start}:{start + size}")
        start += size
        share = size / total if how.join == "cat" else 1
        made.add_edge(shard, head, bytes=graph.amount(name, "output_bytes") * share, tensor="0", unsaved=True)
