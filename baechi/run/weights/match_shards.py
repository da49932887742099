"""Check that a plan's shards and joins belong to layers of a model, and divide them as rules do."""

from collections.abc import Iterator, Mapping

from torch import nn

from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import Shard
from baechi.records.schema import shown
from baechi.split.table import refusal_of, rule_named, rule_of
from baechi.torchlib.shards.table import WEIGHT_OPS

_ALIKE = ("dimension", "sizes", "cuts", "units", "function")
"""What all shards of a layer say."""


def shard_faults(graph: LayerGraph, modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """What is wrong with the shards and joins of a plan, one sentence each."""
    shards: dict[str, Shard] = {}
    numbers: dict[str, tuple[list[int], int]] = {}
    broadcasts: dict[str, str] = {}
    joins = {costs.joins: node for node, costs in graph.placed_costs() if costs.joins is not None}
    for node, costs in graph.placed_costs():
        shard = costs.shard
        if costs.joins is not None:
            yield from _name_faults(graph, node, f"{costs.joins}[join]")
        if costs.broadcasts is not None:
            broadcasts[costs.broadcasts] = node
            yield from _name_faults(graph, node, f"{costs.broadcasts}[broadcast]")
        if shard is not None:
            of, name = shard["of"], f"{shard['of']}[{shard['number']}]"
            yield from _name_faults(graph, node, name)
            call = node[len(name) :] if node.startswith(name) else ""
            numbers.setdefault(of + call, ([], len(shard["sizes"])))[0].append(shard["number"])
            first = shards.setdefault(of, shard)
            if [shard.get(key) for key in _ALIKE] != [first.get(key) for key in _ALIKE]:
                yield f"{node} and {of}[{first['number']}] do not say the same of how {of} is split"
    for call, (found, count) in numbers.items():
        if sorted(found) != list(range(count)):
            yield f"the shards of {call} have the numbers {shown(sorted(found))}, and there are {count} sizes"
    for of, shard in shards.items():
        yield from _rule_faults(of, shard, modules, is_joined=of in joins)
    yield from [f"{node} joins {of}, which has no shards" for of, node in joins.items() if of not in shards]
    for of, node in broadcasts.items():
        if of not in shards or shards[of]["cuts"]:
            yield f"{node} sends the weights of {of}, which has no shards of rows"


def _name_faults(graph: LayerGraph, node: str, name: str) -> Iterator[str]:
    """A shard or join whose node or module has another name."""
    module = graph.module_of(node)
    if module != name or not node.startswith(name) or graph.costs(node).kind != "layer":
        yield f"{node}, {graph.costs(node).kind} of the module {module}, says that it is {name}"


def _rule_faults(
    of: str, shard: Shard, modules: Mapping[str, nn.Module], *, is_joined: bool
) -> Iterator[str]:
    """Shards that do not divide a layer as its rule does."""
    layer, function = modules.get(of), shard.get("function")
    if function is not None and (
        layer or function not in WEIGHT_OPS or "weight" not in shard.get("tied", {})
    ):
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
    refused = refusal_of(layer, rule) if layer is not None else ""
    if refused:
        yield f"the plan splits {of}, and it cannot be split: {refused}"
    how = rule.dims.get(shard["dimension"])
    if how is None:
        yield f"{of} is split along {shown(shard['dimension'])}: it can be along {', '.join(rule.dims)}"
        return
    own = {"weight"} if layer is None else dict(layer.named_parameters())
    cuts = {weight: axis for weight, axis in how.cuts.items() if weight in own}
    values = {weight: how.values.get(weight, 1) for weight in cuts} if how.length else {}
    said = {weight: count for weight, (count, _) in shard.get("units", {}).items()}
    if shard["cuts"] != cuts:
        yield f"{of} is cut along {shown(shard['cuts'])}: along {shard['dimension']} it would be {cuts}"
    if said != values:
        yield f"its units say that weights of {of} have {shown(said)} values, and they have {values}"
    if how.length and sum(shard["sizes"]) != getattr(layer, how.length):
        count = getattr(layer, how.length)
        yield f"{of} has {count} {shard['dimension']}, and its shards {sum(shard['sizes'])}"
    if how.join == "sum" and not is_joined:
        yield f"what the shards of {of} make is added, and the plan has no {of}[join]"
