"""Where a graph cuts the weights of split layers. Nothing here needs torch."""

from typing import NamedTuple

from baechi.records.graph import LayerGraph


class Cut(NamedTuple):
    """Where a weight is cut.

    Args:
        axis: along which axis.
        sizes: how long each shard is.
    """

    axis: int
    sizes: tuple[int, ...]


def cuts_of(graph: LayerGraph) -> dict[str, Cut]:
    """By weight's name, where a graph cuts it."""
    cuts: dict[str, Cut] = {}
    for _, costs in graph.placed_costs():
        shard = costs.shard
        if shard is None:
            continue
        for weight, axis in shard["cuts"].items():
            values, unit = shard.get("units", {}).get(weight, (1, 1))
            for name in (f"{shard['of']}.{weight}", *shard.get("tied", {}).get(weight, ())):
                cuts[name] = Cut(axis, tuple([size * unit for size in shard["sizes"]] * values))
    return cuts
