"""Outputs that stay sharded up to a cross entropy: no join, and each op once a shard.

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
from baechi.split.costs import HOST, SHARED, TIMES
from baechi.split.spec import Sharding
from baechi.torchlib.shards.table import LAYERS, kind_of

_OF_SHARD = ("held_bytes", "lasting_bytes", "lent_bytes", "output_bytes", "passing_bytes", "saved_bytes",
            "upstream_grad_bytes")  # fmt: skip
_KEPT = ("backward_kernels", "dtype", "held_until", "kernels", "kind", "module", "type")
_OF_LOSS = ("colocate", "dtype", "held_bytes", "held_until", "kind", "losses", "module", "output_bytes",
            "returned", "type", "upstream_grad_bytes")  # fmt: skip
_SHARD_PASSES = (("forward_s", "moved_bytes", 2.0), ("backward_s", "backward_moved_bytes", 1.2))
"""A whole reads or writes its logits 3 times forward and 5 backward; a shard, op by op, 6 times each."""

_SHARD_KERNELS, _SUM_KERNELS = (10, 5), (12, 6)
"""Kernels of a shard, and of what puts shards together, forward and backward: the host issues each."""

_BYTES_OF_A_ROW = 16
"""What a shard sends for each label of eight bytes: its largest logit, its sum, the label's logit."""


class Head(NamedTuple):
    """What is read, shard by shard, of a call that is split.

    Args:
        shards: of the call, in order.
        values: names of the equal values of which the output consists, each of so many shards in a row; none
            if it is one value.
    """

    shards: Sequence[str]
    values: Sequence[str] = ()

    def read_by(self, edge: Mapping[str, Any]) -> Sequence[str]:
        """The shards that a reader needs."""
        if not self.values:
            return self.shards
        number = len(self.shards) // len(self.values)
        start = self.values.index(str(edge["tensor"])) * number
        return self.shards[start : start + number]


def keep_logits_sharded(
    made: LayerGraph,
    shards: Mapping[str, list[str]],
    heads: Mapping[str, str],
    shardings: Mapping[str, Sharding],
) -> None:
    """Leave outputs sharded that only a cross entropy, and ops shard by shard before it, read."""
    for layer, sharding in shardings.items():
        calls = [name for name in shards if made.module_of(shards[name][0]) == f"{layer}[0]"]
        regions = [_region(made, heads[call]) for call in calls]
        if sharding.base is not None or not all(regions):
            continue
        for call, region in zip(calls, regions, strict=True):
            assert region is not None
            shares = [size / sum(sharding.sizes) for size in sharding.sizes]
            keep_sharded(made, {heads[call]: Head(shards[call])}, region, shares)


def _region(made: LayerGraph, head: str) -> list[str] | None:
    """The ops that read a join, up to a cross entropy, in topological order; None if anything else does."""
    found: dict[str, None] = {}
    waiting, losses = [head], 0
    while waiting:
        for reader in made.successors(waiting.pop()):
            data = made.nodes[reader]
            does = kind_of(str(data.get("type")))
            if data.get("kind") != "glue" or does not in ("each", "view", "loss"):
                return None
            if data.get("weights"):  # it lies on one device, and only some of the shards do
                return None
            inside = [source for source in made.predecessors(reader) if source == head or source in found]
            if does != "loss" and len(inside) != made.in_degree(reader):
                return None
            if reader not in found and does != "loss":
                waiting.append(reader)
            losses += does == "loss"
            found[reader] = None
    order = [node for node in nx.topological_sort(made) if node in found]
    return order if losses else None


def _is_loss(made: LayerGraph, node: str) -> bool:
    return kind_of(str(made.nodes[node].get("type"))) == "loss"


def keep_sharded(
    made: LayerGraph, heads: Mapping[str, Head], region: Sequence[str], shares: Sequence[float]
) -> None:
    """Leave joins out, and put the shards of ops in place of what reads them."""
    sharded = dict(heads)
    shards = next(iter(heads.values())).shards[: len(shares)]
    for head, own in heads.items():
        number = len(own.shards) // len(shares)  # of values
        _hand_to_shards(
            made.nodes[head],
            [made.nodes[shard] for shard in own.shards],
            [share / number for share in shares] * number,
        )
    for node in region:
        pairs = enumerate(zip(shards, shares, strict=True))
        sharded[node] = Head(
            [_shard_of_op(made, node, number, shard, share) for number, (shard, share) in pairs]
        )
        sources = [(source, dict(made.edges[source, node])) for source in made.predecessors(node)]
        for source, edge in sources:
            own_shards: Sequence[str] = sharded[source].read_by(edge) if source in sharded else ()
            as_large = edge.get("bytes", 0) >= made.nodes[node].get("output_bytes", 0) > 0
            cut = bool(own_shards) or (as_large and not _is_loss(made, node))
            for number, share in enumerate(shares):
                given = _shared_edge(edge, share, number) if cut else edge
                maker = own_shards[number] if own_shards else source
                made.add_edges_from([(maker, sharded[node].shards[number], given)])
        if _is_loss(made, node):
            _become_sum(made, node, sources, sharded)
    gone = [node for node in sharded if node in made and not _is_loss(made, node)]
    for node in gone:
        readers = [reader for reader in made.successors(node) if made.nodes[reader].get("shard")]
        for reader in readers:
            edge, number = made.edges[node, reader], made.nodes[reader]["shard"]["number"]
            made.add_edges_from([(sharded[node].read_by(edge)[number], reader, edge)])
    last = {node: sharded[node].shards[-1] for node in gone}
    made.remove_nodes_from(gone)
    for _, data in made.nodes(data=True):
        for key in ("held_until", "follows"):
            if data.get(key) in last:
                data[key] = last[data[key]]


def _hand_to_shards(
    whole: Mapping[str, Any], shards: Sequence[dict[str, Any]], shares: Sequence[float]
) -> None:
    for shard, share in zip(shards, shares, strict=True):
        for key in _OF_SHARD:
            if whole.get(key):
                shard[key] = max(whole[key] * share, shard.get(key, 0))
        if whole.get("returned"):
            shard["returned"] = {index: size * share for index, size in whole["returned"].items()}
        if whole.get("held_until"):
            shard["held_until"] = whole["held_until"]


def _shard_of_op(made: LayerGraph, node: str, number: int, shard: str, share: float) -> str:
    data, name = made.nodes[node], f"{node}[{number}]"
    own: dict[str, Any] = {key: data[key] for key in _KEPT if key in data}
    own |= {key: data[key] * share for key in (*SHARED, *_OF_SHARD) if data.get(key)}
    own |= {key: scaled(data[key], share) for key in TIMES if key in data}
    own |= {key: data[key] for key in HOST if key in data}
    if data["kind"] == "layer":  # an activation, which runs as the op that it is
        own |= {"kind": "glue", "module": own["module"].rpartition(".")[0], "type": LAYERS[own["type"]]}
    if _is_loss(made, node):
        rows = _row_bytes(made, node)
        # a whole makes two tensors of its size in backward, a shard three: the gradients of its sum and of
        # the labels' logits are added
        own["backward_rise_bytes"] = 1.5 * own.get("backward_rise_bytes", 0)
        for way, moved, times in _SHARD_PASSES:
            if own.get(moved):
                own[moved] *= times
            if way in own:
                own[way] = scaled(own[way], times)
        own |= _issued(data, _SHARD_KERNELS)
        own |= {"output_bytes": rows, "upstream_grad_bytes": rows, "held_bytes": 0, "passing_bytes": rows}
    made.add_node(name, **own, colocate=made.nodes[shard]["colocate"])
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
    """What a shard sends of all rows, as the labels tell their number."""
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
    made: LayerGraph, node: str, sources: list[tuple[str, dict[str, Any]]], sharded: Mapping[str, Head]
) -> None:
    """A cross entropy is what its shards send, put together on the device of the last one."""
    data, rows = made.nodes[node], _row_bytes(made, node)
    own = {key: data[key] for key in _OF_LOSS if key in data}
    own |= {"moved_bytes": rows, "saved_bytes": rows}
    own |= _issued(data, _SUM_KERNELS)
    own |= {key: scaled(data[key], 0.0) for key in TIMES if key in data}
    own["colocate"] = made.nodes[sharded[node].shards[-1]]["colocate"]
    data.clear()
    data.update(own)
    for source, _ in sources:
        if source in sharded:
            made.remove_edge(source, node)
    for shard in sharded[node].shards:
        made.add_edge(shard, node, bytes=rows, tensor="0", unsaved=True)
