"""A layer graph as small integers, for inner loops.

A layer's index is its place in the topological order that every stage uses: code order where that
is topological (it is, for captured graphs), else the topological order nearest to it. So indexes
decide ties, and equal graphs are treated equally: the order of sets and hashes plays no part.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil
from typing import NamedTuple

from baechi.cost.transfer import tensors
from baechi.cost.views import keepers_of, views_among
from baechi.records import Device, LayerGraph
from baechi.records.edge_costs import EdgeCosts
from baechi.records.layer_costs import LayerCosts

FROM_HOST = -1
"""The source of a tensor that is an input of the model, or that glue makes of inputs on the host."""


class Returned(NamedTuple):
    """A tensor that the model returns: it goes to the host, or stays.

    Args:
        maker: the layer that makes it.
        size_bytes: what travels.
        is_loss: whether backward begins there.
    """

    maker: int
    size_bytes: int
    is_loss: bool


@dataclass(frozen=True)
class IndexedGraph:
    """The layers (all nodes but inputs), the tensors between them, and their groups.

    Args:
        names: by layer, in topological order.
        costs: by layer, its attributes when the graph was indexed.
        origin: by tensor, the name of the node that makes it.
        source: by tensor, the layer that makes it, or `FROM_HOST`.
        size_bytes: by tensor, what travels.
        copy_bytes: by tensor, the memory of its copy on another device.
        consumers: by tensor, the layers that read it.
        graded: by tensor, those of them that send a gradient back.
        homeward: by tensor, those whose gradient goes back to the host.
        keepers: by tensor, those whose part of autograd may keep it; a view, if one of its readers may.
        ahead: by tensor, whether it is sent as soon as it is made.
        held: by tensor, whether it stays to the end of forward anyway.
        brief: by tensor, whether it is gone behind its last reader, though its memory may stay.
        reads, makes: by layer, tensors; inputs of the model are read and not made.
        is_view: by layer, whether its output is memory of its inputs (a view, a write in place).
        before, after: by layer, its neighbours by `order_only` edges: it must follow, or precede, them.
        returned: what the model returns, in its order.
        outputs_stay: whether that stays where it was made.
        releases: by layer, the layers whose outputs are released when it has run (`held_until`).
        awaited: by layer, the layers whose values the host waits for before it reaches it.
        members: by group, its layers; groups are ordered by their first layer.
        group_of: by layer, its group.
    """

    names: Sequence[str]
    costs: Sequence[LayerCosts]
    origin: Sequence[str]
    source: Sequence[int]
    size_bytes: Sequence[int]
    copy_bytes: Sequence[int]
    consumers: Sequence[Sequence[int]]
    graded: Sequence[Sequence[int]]
    homeward: Sequence[Sequence[int]]
    keepers: Sequence[Collection[int]]
    ahead: Sequence[bool]
    held: Sequence[bool]
    brief: Sequence[bool]
    reads: Sequence[Sequence[int]]
    makes: Sequence[Sequence[int]]
    is_view: Sequence[bool]
    before: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]
    returned: Sequence[Returned]
    outputs_stay: bool
    releases: Mapping[int, Sequence[int]]
    awaited: Mapping[int, Sequence[int]]
    members: Sequence[Sequence[int]]
    group_of: Sequence[int]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def fetched(self) -> Sequence[Returned]:
        """What the model returns and the host fetches."""
        return () if self.outputs_stay else self.returned

    @classmethod
    def of(
        cls, graph: LayerGraph, *, spread: bool = False, alone: bool = False, apart: bool = False
    ) -> "IndexedGraph":
        """Index a graph.

        `spread` and `alone` are for what travels: see `tensors`. With `apart` functional ops may lie apart
        from what they follow: see `LayerGraph.groups`.
        """
        names = topological_names(graph)
        index = {name: place for place, name in enumerate(names)}
        costs_of = dict(graph.placed_costs())
        costs = [costs_of[name] for name in names]
        reads: list[tuple[int, ...]] = [()] * len(names)
        makes: list[tuple[int, ...]] = [()] * len(names)
        found = tensors(graph, spread=spread, alone=alone)
        from_layers = {
            name: number for name, number in index.items() if not (spread and costs[number].on_host)
        }
        source = [from_layers.get(tensor.source, FROM_HOST) for tensor in found]
        consumers = [tuple(sorted([index[name] for name in tensor.consumers])) for tensor in found]
        for number, maker in enumerate(source):
            if maker != FROM_HOST:
                makes[maker] += (number,)
            for reader in consumers[number]:
                reads[reader] += (number,)
        sizes = [tensor.size_bytes for tensor in found]
        made_bytes = [max([sizes[tensor] for tensor in made]) if made else 1 for made in makes]
        members, group_of = _groups(graph, index, costs, apart=apart)
        before, after = _order_only(graph, index)
        is_view = views_among(costs, made_bytes)
        returned = _returned(costs)
        return cls(
            names=names,
            costs=costs,
            origin=[tensor.source for tensor in found],
            source=source,
            size_bytes=sizes,
            copy_bytes=[tensor.copy_bytes for tensor in found],
            consumers=consumers,
            graded=_graded([[index[name] for name in tensor.graded] for tensor in found], makes, returned),
            homeward=[tuple([index[name] for name in tensor.homeward]) for tensor in found],
            keepers=keepers_of([tensor.keepers for tensor in found], index, makes, reads, is_view),
            ahead=[tensor.ahead for tensor in found],
            held=[tensor.held for tensor in found],
            brief=[tensor.brief for tensor in found],
            reads=reads,
            makes=makes,
            is_view=is_view,
            before=before,
            after=after,
            returned=returned,
            outputs_stay=graph.outputs_stay,
            releases=_by_node([costs_of[name].held_until for name in names], index),
            awaited=_awaited([costs_of[name].awaited_before for name in names], index),
            members=members,
            group_of=group_of,
        )


def topological_names(graph: LayerGraph) -> list[str]:
    """The layers in the topological order nearest to code order."""
    names = list(graph.placed())
    index = {name: place for place, name in enumerate(names)}
    if _are_topological(graph, index):
        return names
    after = [
        [index[target] for target in targets] for source, targets in graph.adjacency() if source in index
    ]
    missing = [0] * len(names)
    for targets in after:
        for target in targets:
            missing[target] += 1
    ready = [place for place, count in enumerate(missing) if count == 0]
    heapify(ready)
    order = []
    while ready:
        place = heappop(ready)
        order.append(names[place])
        for target in after[place]:
            missing[target] -= 1
            if missing[target] == 0:
                heappush(ready, target)
    return order


def seconds_by_device(
    graph: LayerGraph, names: Sequence[str], devices: Sequence[Device], attribute: str
) -> list[list[float]]:
    """Times of layers on devices."""
    known: dict[tuple[str, float], list[float]] = {}
    for device in devices:
        key = (device.kind, device.speed)
        if key not in known:
            known[key] = [graph.seconds(name, attribute, *key) for name in names]
    return [known[device.kind, device.speed] for device in devices]


def _are_topological(graph: LayerGraph, index: Mapping[str, int]) -> bool:
    for source, targets in graph.adjacency():
        place = index.get(source, FROM_HOST)
        for target in targets:
            if index[target] <= place:
                return False
    return True


def _returned(layers: Sequence[LayerCosts]) -> list[Returned]:
    found: list[tuple[int, Returned]] = []
    for layer, costs in enumerate(layers):
        for place, size in costs.returned.items() if costs.returned else ():
            is_loss = costs.losses is not None and place in costs.losses
            found.append((int(place), Returned(layer, ceil(size), is_loss)))
    return [returned for _, returned in sorted(found)]


def _graded(
    sending: Sequence[Sequence[int]], makes: Sequence[Sequence[int]], returned: Sequence[Returned]
) -> list[tuple[int, ...]]:
    """By tensor, the readers that send a gradient back. If losses are known: those that a loss depends on."""
    losses = {tensor.maker for tensor in returned if tensor.is_loss}
    if not losses and all(sending):
        return [tuple(sorted(readers)) for readers in sending]
    trained = [not losses or layer in losses for layer in range(len(makes))]
    graded: list[tuple[int, ...]] = [()] * len(sending)
    for layer in reversed(range(len(makes))):
        for tensor in makes[layer]:
            graded[tensor] = tuple(sorted([reader for reader in sending[tensor] if trained[reader]]))
            trained[layer] |= bool(graded[tensor])
    return graded


def _by_node(names: Sequence[str], index: dict[str, int]) -> dict[int, list[int]]:
    """By layer, the layers whose attribute names it."""
    found: dict[int, list[int]] = {}
    for layer, name in enumerate(names):
        if name in index:
            found.setdefault(index[name], []).append(layer)
    return found


def _awaited(names: Sequence[str], index: dict[str, int]) -> dict[int, list[int]]:
    """By layer, those whose values the host waits for before it. (A file may name one that comes first.)"""
    found = {}
    for reached, makers in _by_node(names, index).items():
        earlier = [maker for maker in makers if maker < reached]
        if earlier:
            found[reached] = earlier
    return found


def _order_only(
    graph: LayerGraph, index: dict[str, int]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for source, edges in graph.adjacency():
        if source not in index:
            continue
        for target, data in edges.items():
            if "order_only" in data and EdgeCosts.of(data).order_only:
                before.setdefault(index[target], []).append(index[source])
                after.setdefault(index[source], []).append(index[target])
    return _by_layer(before, len(index)), _by_layer(after, len(index))


def _by_layer(found: Mapping[int, Sequence[int]], layers: int) -> list[tuple[int, ...]]:
    """Tuples, here and above: the garbage collector does not follow tuples of integers, and lists it does."""
    return [tuple(found.get(layer, ())) for layer in range(layers)]


def _alone(layers: int) -> tuple[list[tuple[int, ...]], list[int]]:
    return [(layer,) for layer in range(layers)], list(range(layers))


def _groups(
    graph: LayerGraph, index: dict[str, int], layers: Sequence[LayerCosts], *, apart: bool
) -> tuple[list[tuple[int, ...]], list[int]]:
    if all([costs.colocate is None and costs.follows is None for costs in layers]):
        return _alone(len(index))
    groups = graph.groups(apart=apart).values()
    members = sorted([tuple(sorted([index[name] for name in group])) for group in groups])
    group_of = [0] * len(index)
    for number, group in enumerate(members):
        for layer in group:
            group_of[layer] = number
    return members, group_of
