"""Check that a plan's tiles and joins belong to layers of a model, and divide them as rules do."""

from collections.abc import Iterator, Mapping

from torch import nn

from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import Tile
from baechi.records.schema import shown
from baechi.split.piecewise import WEIGHT_OPS
from baechi.split.table import rule_named, rule_of

_ALIKE = ("dimension", "sizes", "cuts", "units", "function")
"""What all tiles of a layer say."""


def tile_faults(graph: LayerGraph, modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """What is wrong with the tiles and joins of a plan, one sentence each.

    Args:
        graph: the layer graph of a plan.
        modules: the model's modules by qualified name.
    """
    tiles: dict[str, Tile] = {}
    numbers: dict[str, tuple[list[int], int]] = {}
    joins = {costs.joins: node for node, costs in graph.placed_costs() if costs.joins is not None}
    for node, costs in graph.placed_costs():
        tile = costs.tile
        if costs.joins is not None:
            yield from _name_faults(graph, node, f"{costs.joins}[join]")
        if tile is not None:
            of, name = tile["of"], f"{tile['of']}[{tile['number']}]"
            yield from _name_faults(graph, node, name)
            call = node[len(name) :] if node.startswith(name) else ""
            numbers.setdefault(of + call, ([], len(tile["sizes"])))[0].append(tile["number"])
            first = tiles.setdefault(of, tile)
            if [tile.get(key) for key in _ALIKE] != [first.get(key) for key in _ALIKE]:
                yield f"{node} and {of}[{first['number']}] do not say the same of how {of} is split"
    for call, (found, count) in numbers.items():
        if sorted(found) != list(range(count)):
            yield f"the tiles of {call} have the numbers {shown(sorted(found))}, and there are {count} sizes"
    for of, tile in tiles.items():
        yield from _rule_faults(of, tile, modules, is_joined=of in joins)
    yield from [f"{node} joins {of}, which has no tiles" for of, node in joins.items() if of not in tiles]


def _name_faults(graph: LayerGraph, node: str, name: str) -> Iterator[str]:
    """A tile or join whose node or module has another name."""
    module = graph.module_of(node)
    if module != name or not node.startswith(name) or graph.costs(node).kind != "layer":
        yield f"{node}, {graph.costs(node).kind} of the module {module}, says that it is {name}"


def _rule_faults(of: str, tile: Tile, modules: Mapping[str, nn.Module], *, is_joined: bool) -> Iterator[str]:
    """Tiles that do not divide a layer as its rule does."""
    layer, function = modules.get(of), tile.get("function")
    if function is not None and (layer or function not in WEIGHT_OPS or "weight" not in tile.get("tied", {})):
        yield f"{of} is no functional op {shown(function)} of a weight: such are {', '.join(WEIGHT_OPS)}"
        return
    if function is None and layer is None:
        return  # it is not in the model
    rule = rule_of(type(layer)) if function is None else rule_named(WEIGHT_OPS[function])
    if rule is None:
        yield (
            f"the plan splits {of}, a {type(layer).__name__}: no rule does that in this process; call "
            "baechi.register_split as when the plan was made"
        )
        return
    how = rule.dims.get(tile["dimension"])
    if how is None:
        yield f"{of} is split along {shown(tile['dimension'])}: it can be along {', '.join(rule.dims)}"
        return
    own = {"weight"} if layer is None else dict(layer.named_parameters())
    cuts = {weight: axis for weight, axis in how.cuts.items() if weight in own}
    values = {weight: how.values.get(weight, 1) for weight in cuts} if how.length else {}
    said = {weight: count for weight, (count, _) in tile.get("units", {}).items()}
    if tile["cuts"] != cuts:
        yield f"{of} is cut along {shown(tile['cuts'])}: along {tile['dimension']} it would be {cuts}"
    if said != values:
        yield f"its units say that weights of {of} have {shown(said)} values, and they have {values}"
    if how.length and sum(tile["sizes"]) != getattr(layer, how.length):
        yield f"{of} has {getattr(layer, how.length)} {tile['dimension']}, and its tiles {sum(tile['sizes'])}"
    if how.join == "sum" and not is_joined:
        yield f"what the tiles of {of} make is added, and the plan has no {of}[join]"
