"""Layers of a chain that are cut alike: what one leaves sharded the next takes sharded.

    up[0] ─┐                        ┌─ down[0] ─┐           up[0] ─▶ gelu[0] ─▶ down[0] ─┐
    up[1] ─┼▶ up[join] ─▶ gelu ─▶ ──┼─ down[1] ─┼▶  >>      up[1] ─▶ gelu[1] ─▶ down[1] ─┼▶ down[join]
    up[2] ─┘                        └─ down[2] ─┘           up[2] ─▶ gelu[2] ─▶ down[2] ─┘

One scatter and one sum, as Megatron-LM splits an MLP; of several layers, too (`down(silu(gate(x)) * up(x))`),
and of one that computes several values at once, each cut as its reader is (`q`, `k` and `v` of GPT-2).
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import networkx as nx

from baechi.records.graph import LayerGraph
from baechi.split.dimension import SplitDimension
from baechi.split.sharded_outputs import Head, keep_sharded
from baechi.split.spec import Sharding
from baechi.torchlib.shards.table import LAYERS, kind_of

Shares = tuple[Fraction, ...]
"""How much of a whole each shard is: layers of other widths may be cut alike (keys of grouped queries)."""


def link_chains(
    made: LayerGraph,
    shards: Mapping[str, list[str]],
    heads: Mapping[str, str],
    shardings: Mapping[str, Sharding],
    dimensions: Mapping[str, SplitDimension],
) -> None:
    """Leave outputs sharded where only shards that take them so read them, or ops by element."""
    calls: dict[str, dict[str, Sequence[str]]] = {}
    for name, own in shards.items():
        calls.setdefault(made.nodes[own[0]]["shard"]["of"], {})[heads[name]] = own
    alike: dict[tuple[int, Shares], dict[str, dict[str, Head]]] = {}
    for layer, own_calls in calls.items():
        how, sharding = dimensions[layer], shardings[layer]
        if how.join == "cat" and sharding.base is None and all(head in made for head in own_calls):
            for shares, of_calls in _ways(made, own_calls, sharding.sizes):
                alike.setdefault((how.axis, shares), {})[layer] = of_calls
    takers = {layer: (how.takes, _shares(shardings[layer].sizes)) for layer, how in dimensions.items()}
    for key, layers in alike.items():
        ends = {layer for layer, takes in takers.items() if takes == key}
        joined = {
            head: (layer, own)
            for layer, of_calls in layers.items()
            for head, own in of_calls.items()
            if head in made
        }
        linked, between = _region(made, joined, ends)
        if linked:
            own_heads = {head: own for head, (layer, own) in joined.items() if layer in linked}
            keep_sharded(made, own_heads, between, [float(share) for share in key[1]])


def _shares(sizes: Sequence[int]) -> Shares:
    return tuple([Fraction(size, sum(sizes)) for size in sizes])


def _ways(
    made: LayerGraph, calls: Mapping[str, Sequence[str]], sizes: Sequence[int]
) -> Iterator[tuple[Shares, dict[str, Head]]]:
    """How sharded outputs may be read: as one value; as several, if the shards cut each of them alike."""
    yield _shares(sizes), {head: Head(shards) for head, shards in calls.items()}
    several = {head: Head(shards, _values(made, head)) for head, shards in calls.items()}
    values = {len(own.values) for own in several.values()}
    number, rest = divmod(len(sizes), max(1, *values))
    if len(values) == 1 and number < len(sizes) and not rest:
        if list(sizes) == list(sizes[:number]) * (len(sizes) // number):
            yield _shares(sizes[:number]), several


def _values(made: LayerGraph, head: str) -> tuple[str, ...]:
    """Names of the equal values of which an output consists, if its readers take one each; else none."""
    edges = [edge for _, _, edge in made.out_edges(head, data=True) if not edge.get("order_only")]
    names = dict.fromkeys([str(edge["tensor"]) for edge in edges])
    whole = made.nodes[head].get("output_bytes", 0)
    even = all([edge.get("bytes", 0) * len(names) == whole for edge in edges])
    return tuple(names) if len(names) > 1 and even else ()


def _region(
    made: LayerGraph, heads: Mapping[str, tuple[str, Head]], ends: set[str]
) -> tuple[list[str], Sequence[str]]:
    """The layers of which nothing needs the whole, and the ops between them and shards that take theirs."""
    order = list(nx.topological_sort(made))
    layers = list(dict.fromkeys([layer for layer, _ in heads.values()]))
    while layers and ends:
        owners = {head: {layer} for head, (layer, _) in heads.items() if layer in layers}
        found: list[str] = []
        whole: set[str] = set()
        for node in order:
            inside = [source for source in made.predecessors(node) if source in owners]
            if not inside:
                continue
            own = set().union(*[owners[source] for source in inside])
            data = made.nodes[node]
            if _goes_by_shards(made, node, alone=len(inside) == made.in_degree(node)):
                owners[node] = own
                found.append(node)
            elif data.get("shard") is None or data["shard"]["of"] not in ends or len(inside) > 1:
                whole |= own
        for node, own in owners.items():
            if made.nodes[node].get("returned") or not made.out_degree(node):
                whole |= own
        if not whole:
            return layers, found
        layers = [layer for layer in layers if layer not in whole]
    return [], []


def _goes_by_shards(made: LayerGraph, node: str, *, alone: bool) -> bool:
    data = made.nodes[node]
    kind = data.get("type")
    if data.get("weights"):  # a weight lies on one device: shards on others would have to be brought it
        return False
    if data.get("kind") != "glue":
        return alone and kind in LAYERS
    does = kind_of(str(kind))
    return does in ("each", "stack", "other axes") or (alone and does == "view")
