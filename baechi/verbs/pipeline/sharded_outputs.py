"""Outputs of split layers that a model returns: its loss takes them sharded, but microbatches join them."""

from collections import Counter

from baechi.records.graph import LayerGraph
from baechi.units import format_bytes


def told_of_returned(graph: LayerGraph) -> str:
    """What microbatches join because the model returns it, and what helps where it does not fit."""
    sizes: Counter[str] = Counter()
    for _, costs in graph.placed_costs():
        if costs.shard is not None and costs.returned and f"{costs.shard['of']}[join]" not in graph:
            sizes[costs.shard["of"]] += round(sum(costs.returned.values()))
    if not sizes:
        return ""
    outputs = " and ".join([f"the output of {name} ({format_bytes(size)})" for name, size in sizes.items()])
    return (
        f". Since the model returns it, each microbatch joins {outputs} on one device, whatever the "
        "number of shards: return the loss alone, or compute it by loss=, so that it stays sharded, or give "
        "fewer rows"
    )
