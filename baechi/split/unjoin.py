"""Outputs of tiles that stay in parts up to a cross entropy: no join, and each op once a tile.

    head[0] ──┐                                      head[0] ─▶ float[0] ─▶ loss[0] ──┐
    head[1] ──┼─▶ head[join] ─▶ float ─▶ loss   >>   head[1] ─▶ float[1] ─▶ loss[1] ──┼─▶ loss
    head[2] ──┘                                      head[2] ─▶ float[2] ─▶ loss[2] ──┘

So it is where nothing else reads them. The runtime joins where the code asks for more than was captured.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import networkx as nx

from baechi.records.attributes import scaled
from baechi.records.graph import LayerGraph
from baechi.split.costs import SHARED, TIMES
from baechi.split.piecewise import ELEMENTWISE, LAYERS, LOSS, VIEWS
from baechi.split.spec import Tiling

_OF_PART = ("held_bytes", "lasting_bytes", "lent_bytes", "output_bytes", "passing_bytes", "saved_bytes",
            "upstream_grad_bytes")  # fmt: skip
_KEPT = ("backward_kernels", "dtype", "held_until", "kernels", "kind", "module", "type")
_OF_LOSS = ("colocate", "dtype", "held_bytes", "held_until", "kind", "losses", "module", "output_bytes",
            "returned", "type", "upstream_grad_bytes")  # fmt: skip
_PART_PASSES = (("forward_s", "moved_bytes", 2.0), ("backward_s", "backward_moved_bytes", 1.2))
"""A whole reads or writes its logits 3 times forward and 5 times backward; a part, op by op, 6 times each."""

_PART_KERNELS, _SUM_KERNELS = (10, 5), (12, 6)
"""Kernels of a part, and of what puts parts together, forward and backward: the host issues each."""

_BYTES_OF_A_ROW = 16
"""What a tile sends for each label of eight bytes: its largest logit, its sum, the label's logit."""


class Head(NamedTuple):
    """What is read in parts of a call that is split.

    Args:
        tiles: of the call, in order.
        values: names of the equal values of which the output consists, each of so many tiles in a row; none
            if it is one value.
    """

    tiles: Sequence[str]
    values: Sequence[str] = ()

    def read_by(self, edge: Mapping[str, Any]) -> Sequence[str]:
        """The tiles that a reader needs.

        Args:
            edge: from the join to the reader.
        """
        if not self.values:
            return self.tiles
        number = len(self.tiles) // len(self.values)
        start = self.values.index(str(edge["tensor"])) * number
        return self.tiles[start : start + number]


def unjoin(
    made: LayerGraph, tiles: Mapping[str, list[str]], heads: Mapping[str, str], tilings: Mapping[str, Tiling]
) -> None:
    """Leave outputs in parts where only a cross entropy, and what goes part by part before it, reads them.

    Args:
        made: a graph with tiles and joins; it is changed.
        tiles: by call that is split, its tiles.
        heads: by call that is split, its join.
        tilings: by layer, how it is split; of layers whose tiles' outputs lie one after the other.
    """
    for layer, tiling in tilings.items():
        calls = [name for name in tiles if made.module_of(tiles[name][0]) == f"{layer}[0]"]
        regions = [_region(made, heads[call]) for call in calls]
        if tiling.base is not None or not all(regions):
            continue
        for call, region in zip(calls, regions, strict=True):
            assert region is not None
            shares = [size / sum(tiling.sizes) for size in tiling.sizes]
            leave_in_parts(made, {heads[call]: Head(tiles[call])}, region, shares)


def _region(made: LayerGraph, head: str) -> list[str] | None:
    """The ops that read a join, up to a cross entropy, in topological order; None if anything else does."""
    found: dict[str, None] = {}
    waiting, losses = [head], 0
    while waiting:
        for reader in made.successors(waiting.pop()):
            data = made.nodes[reader]
            kind = data.get("type")
            if data.get("kind") != "glue" or kind not in ELEMENTWISE | VIEWS | {LOSS}:
                return None
            if data.get("weights"):  # it lies on one device, and only some of the parts do
                return None
            inside = [source for source in made.predecessors(reader) if source == head or source in found]
            if kind != LOSS and len(inside) != made.in_degree(reader):
                return None
            if reader not in found and kind != LOSS:
                waiting.append(reader)
            losses += kind == LOSS
            found[reader] = None
    order = [node for node in nx.topological_sort(made) if node in found]
    return order if losses else None


def leave_in_parts(
    made: LayerGraph, heads: Mapping[str, Head], region: Sequence[str], shares: Sequence[float]
) -> None:
    """Leave joins out, and put the parts of ops in place of what reads them.

    Args:
        made: a graph with tiles and joins; it is changed.
        heads: by join, its tiles.
        region: the ops, in topological order; they read the joins, or each other.
        shares: how much of a value each part is.
    """
    parts = dict(heads)
    tiles = next(iter(heads.values())).tiles[: len(shares)]
    for head, own in heads.items():
        number = len(own.tiles) // len(shares)  # of values
        _hand_to_tiles(
            made.nodes[head],
            [made.nodes[tile] for tile in own.tiles],
            [share / number for share in shares] * number,
        )
    for node in region:
        pairs = enumerate(zip(tiles, shares, strict=True))
        parts[node] = Head([_part(made, node, number, tile, share) for number, (tile, share) in pairs])
        sources = [(source, dict(made.edges[source, node])) for source in made.predecessors(node)]
        for source, edge in sources:
            own_parts: Sequence[str] = parts[source].read_by(edge) if source in parts else ()
            as_large = edge.get("bytes", 0) >= made.nodes[node].get("output_bytes", 0) > 0
            cut = bool(own_parts) or (as_large and made.nodes[node]["type"] != LOSS)
            for number, share in enumerate(shares):
                given = _shared_edge(edge, share, number) if cut else edge
                maker = own_parts[number] if own_parts else source
                made.add_edges_from([(maker, parts[node].tiles[number], given)])
        if made.nodes[node]["type"] == LOSS:
            _become_sum(made, node, sources, parts)
    gone = [node for node in parts if node in made and made.nodes[node].get("type") != LOSS]
    for node in gone:
        readers = [reader for reader in made.successors(node) if made.nodes[reader].get("tile")]
        for reader in readers:
            edge, number = made.edges[node, reader], made.nodes[reader]["tile"]["number"]
            made.add_edges_from([(parts[node].read_by(edge)[number], reader, edge)])
    last = {node: parts[node].tiles[-1] for node in gone}
    made.remove_nodes_from(gone)
    for _, data in made.nodes(data=True):
        for key in ("held_until", "follows"):
            if data.get(key) in last:
                data[key] = last[data[key]]


def _hand_to_tiles(
    whole: Mapping[str, Any], tiles: Sequence[dict[str, Any]], shares: Sequence[float]
) -> None:
    for tile, share in zip(tiles, shares, strict=True):
        for key in _OF_PART:
            if whole.get(key):
                tile[key] = max(whole[key] * share, tile.get(key, 0))
        if whole.get("returned"):
            tile["returned"] = {index: size * share for index, size in whole["returned"].items()}
        if whole.get("held_until"):
            tile["held_until"] = whole["held_until"]


def _part(made: LayerGraph, node: str, number: int, tile: str, share: float) -> str:
    data, name = made.nodes[node], f"{node}[{number}]"
    own: dict[str, Any] = {key: data[key] for key in _KEPT if key in data}
    own |= {key: data[key] * share for key in (*SHARED, *_OF_PART) if data.get(key)}
    own |= {key: scaled(data[key], share) for key in TIMES if key in data}
    own |= {key: data[key] for key in ("host_forward_s", "host_backward_s") if key in data}
    if data["kind"] == "layer":  # an activation, which runs as the op that it is
        own |= {"kind": "glue", "module": own["module"].rpartition(".")[0], "type": LAYERS[own["type"]]}
    if data["type"] == LOSS:
        rows = _row_bytes(made, node)
        # a whole makes two tensors of its size in backward, a part three: the gradients of its sum and of the
        # labels' logits are added
        own["backward_rise_bytes"] = 1.5 * own.get("backward_rise_bytes", 0)
        for way, moved, times in _PART_PASSES:
            if own.get(moved):
                own[moved] *= times
            if way in own:
                own[way] = scaled(own[way], times)
        own |= _issued(data, _PART_KERNELS)
        own |= {"output_bytes": rows, "upstream_grad_bytes": rows, "held_bytes": 0, "passing_bytes": rows}
    made.add_node(name, **own, colocate=made.nodes[tile]["colocate"])
    return name


def _issued(whole: Mapping[str, Any], kernels: tuple[int, int]) -> dict[str, Any]:
    """What so many kernels take of the host, in place of those of a whole cross entropy."""
    made: dict[str, Any] = {}
    ways = (("kernels", "host_forward_s"), ("backward_kernels", "host_backward_s"))
    for (before, host), number in zip(ways, kernels, strict=True):
        if whole.get(before):  # in inference there is no backward
            made[before] = number
            if host in whole:
                made[host] = whole[host] * number / whole[before]
    return made


def _row_bytes(made: LayerGraph, loss: str) -> float:
    """What a tile sends of all rows, as the labels tell their number."""
    labels = [
        made.edges[source, loss].get("bytes", 0)
        for source in made.predecessors(loss)
        if made.edges[source, loss].get("no_grad") or made.nodes[source].get("kind") == "input"
    ]
    return max(labels, default=0) * _BYTES_OF_A_ROW / 8


def _shared_edge(edge: dict[str, Any], share: float, number: int) -> dict[str, Any]:
    own = {key: value for key, value in edge.items() if key not in ("parts", "copies")}
    return own | {"bytes": edge.get("bytes", 0) * share, "tensor": f"{edge.get('tensor')}[{number}]"}


def _become_sum(
    made: LayerGraph, node: str, sources: list[tuple[str, dict[str, Any]]], parts: Mapping[str, Head]
) -> None:
    """A cross entropy is what its parts send, put together on the device of the last one."""
    data, rows = made.nodes[node], _row_bytes(made, node)
    own = {key: data[key] for key in _OF_LOSS if key in data}
    own |= {"moved_bytes": rows, "saved_bytes": rows}
    own |= _issued(data, _SUM_KERNELS)
    own |= {key: scaled(data[key], 0.0) for key in TIMES if key in data}
    own["colocate"] = made.nodes[parts[node].tiles[-1]]["colocate"]
    data.clear()
    data.update(own)
    for source, _ in sources:
        if source in parts:
            made.remove_edge(source, node)
    for part in parts[node].tiles:
        made.add_edge(part, node, bytes=rows, tensor="0", unsaved=True)
