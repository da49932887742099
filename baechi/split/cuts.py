"""Where a graph cuts the weights of split layers. Nothing here needs torch."""

from typing import NamedTuple

from baechi.records.graph import LayerGraph


class Cut(NamedTuple):
    """Where a weight is cut.

    Args:
        axis: along which axis.
        sizes: how long each piece is.
    """

    axis: int
    sizes: tuple[int, ...]


def cuts_of(graph: LayerGraph) -> dict[str, Cut]:
    """By weight's name, where a graph cuts it.

    Args:
        graph: the layer graph of a plan.
    """
    cuts: dict[str, Cut] = {}
    for _, costs in graph.placed_costs():
        tile = costs.tile
        if tile is None:
            continue
        for weight, axis in tile["cuts"].items():
            values, unit = tile.get("units", {}).get(weight, (1, 1))
            for name in (f"{tile['of']}.{weight}", *tile.get("tied", {}).get(weight, ())):
                cuts[name] = Cut(axis, tuple([size * unit for size in tile["sizes"]] * values))
    return cuts
