"""The order in which each device launches its layers, and the code's order beside it."""

from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx

from baechi.order.beside_host import who_goes_first
from baechi.records.plan import Plan


@dataclass(frozen=True)
class LaunchOrder:
    """Which layer launches after which.

    Args:
        device_of: by layer, its device.
        order: all layers, those of a device in the order in which it launches them; each after its
            parents.
        parents: by layer, those whose outputs it reads, or that it must follow.
        code_order: all layers, as the model's code reaches them.
        first: by layer that the host computes itself, layers of other devices that launch before it.
    """

    device_of: dict[str, str]
    order: tuple[str, ...]
    parents: dict[str, tuple[str, ...]]
    code_order: tuple[str, ...]
    first: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> "LaunchOrder":
        """The launch order of a plan.

        Functional ops (glue) are no layers here: each runs after its inputs, and its inputs count as read
        by its readers. A node for weights that nothing reads is no layer either: it never launches.
        """
        graph = plan.graph
        layers = [name for name, costs in graph.placed_costs() if costs.kind == "layer" and not costs.unread]
        parents = _layer_parents(plan, layers)
        order = _restore_order(plan.order, parents)
        return cls(
            {name: plan.device_of[name] for name in layers},
            order,
            {name: tuple(parents[name]) for name in layers},
            tuple(layers),
            who_goes_first(plan, order, parents),
        )

    def queues(self) -> dict[str, list[str]]:
        """By device, its layers in the order in which it launches them."""
        queues: dict[str, list[str]] = {}
        for layer in self.order:
            queues.setdefault(self.device_of[layer], []).append(layer)
        return queues

    @cached_property
    def numbered_queues(self) -> list[list[str]]:
        """`queues` by number."""
        return list(self.queues().values())

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """By layer, the number of its queue, and its place there."""
        return {
            layer: (number, place)
            for number, queue in enumerate(self.numbered_queues)
            for place, layer in enumerate(queue)
        }

    @cached_property
    def code_places(self) -> dict[str, int]:
        """By layer, its place in the code's order."""
        return {layer: place for place, layer in enumerate(self.code_order)}


def _layer_parents(plan: Plan, layers: list[str]) -> dict[str, dict[str, None]]:
    """Parents among layers, through glue."""
    graph, known = plan.graph, set(layers)
    through: dict[str, dict[str, None]] = {}
    for name in graph.code_order():
        found: dict[str, None] = {}
        for parent in graph.predecessors(name):
            if parent in known:
                found[parent] = None
            elif parent in through:
                found.update(through[parent])
        through[name] = found
    return {name: through[name] for name in layers}


def _restore_order(order: tuple[str, ...], parents: dict[str, dict[str, None]]) -> tuple[str, ...]:
    """The nearest order in which each layer comes after its parents."""
    place = {name: index for index, name in enumerate(order)}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from([name for name in order if name in parents])
    graph.add_edges_from((parent, name) for name, found in parents.items() for parent in found)
    return tuple(nx.lexicographical_topological_sort(graph, key=place.__getitem__))
