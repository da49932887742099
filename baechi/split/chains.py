"""Layers of a chain that are cut alike: what one leaves in parts the next takes in parts.

    up[0] ─┐                        ┌─ down[0] ─┐           up[0] ─▶ gelu[0] ─▶ down[0] ─┐
    up[1] ─┼▶ up[join] ─▶ gelu ─▶ ──┼─ down[1] ─┼▶  >>      up[1] ─▶ gelu[1] ─▶ down[1] ─┼▶ down[join]
    up[2] ─┘                        └─ down[2] ─┘           up[2] ─▶ gelu[2] ─▶ down[2] ─┘

One scatter and one sum, as Megatron-LM splits an MLP; of several layers, too (`down(silu(gate(x)) * up(x))`).
"""

from collections.abc import Mapping, Sequence

import networkx as nx

from baechi.records.graph import LayerGraph
from baechi.split.dimension import SplitDimension
from baechi.split.piecewise import ELEMENTWISE, HEADS, LAYERS, VIEWS
from baechi.split.spec import Tiling
from baechi.split.unjoin import leave_in_parts


def link_chains(
    made: LayerGraph,
    tiles: Mapping[str, list[str]],
    heads: Mapping[str, str],
    tilings: Mapping[str, Tiling],
    dimensions: Mapping[str, SplitDimension],
) -> None:
    """Leave outputs in parts where only tiles that take them so read them, or ops element by element before.

    Args:
        made: a graph with tiles and joins; it is changed.
        tiles: by call that is split, its tiles.
        heads: by call that is split, its join.
        tilings: by layer, how it is split.
        dimensions: by layer, along what.
    """
    calls: dict[str, dict[str, list[str]]] = {}
    alike: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, own in tiles.items():
        layer = made.nodes[own[0]]["tile"]["of"]
        calls.setdefault(layer, {})[heads[name]] = own
    for layer in calls:
        how, tiling = dimensions[layer], tilings[layer]
        joined = all(head in made for head in calls[layer])
        if how.join == "cat" and joined and tiling.base is None:
            alike.setdefault((how.axis, tiling.sizes), []).append(layer)
    takers = {layer: (how.takes, tilings[layer].sizes) for layer, how in dimensions.items()}
    for key, layers in alike.items():
        ends = {layer for layer, takes in takers.items() if takes == key}
        region = _region(made, {head: layer for layer in layers for head in calls[layer]}, ends)
        own_heads = {head: own for layer in region[0] for head, own in calls[layer].items()}
        if own_heads:
            leave_in_parts(made, own_heads, region[1], key[1])


def _region(made: LayerGraph, heads: Mapping[str, str], ends: set[str]) -> tuple[list[str], Sequence[str]]:
    """The layers of which nothing needs the whole, and the ops between them and tiles that take parts."""
    order = list(nx.topological_sort(made))
    layers = list(dict.fromkeys(heads.values()))
    while layers:
        owners = {head: {layer} for head, layer in heads.items() if layer in layers}
        found: list[str] = []
        whole: set[str] = set()
        for node in order:
            inside = [source for source in made.predecessors(node) if source in owners]
            if not inside:
                continue
            own = set().union(*[owners[source] for source in inside])
            data = made.nodes[node]
            if len(inside) == made.in_degree(node) and _goes_by_parts(made, node):
                owners[node] = own
                found.append(node)
            elif data.get("tile") is None or data["tile"]["of"] not in ends or len(inside) > 1:
                whole |= own
        for node, own in owners.items():
            if made.nodes[node].get("returned") or not made.out_degree(node):
                whole |= own
        if not whole:
            return layers, found
        layers = [layer for layer in layers if layer not in whole]
    return [], []


def _goes_by_parts(made: LayerGraph, node: str) -> bool:
    data = made.nodes[node]
    kind = data.get("type")
    if data.get("weights"):  # a weight lies on one device: parts on others would have to be brought it
        return False
    return kind in (ELEMENTWISE | HEADS | VIEWS if data.get("kind") == "glue" else LAYERS)
