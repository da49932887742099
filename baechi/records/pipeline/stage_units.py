"""What the stages of all placements of a graph have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

from baechi.records.edge_costs import EdgeCosts
from baechi.records.graph import LayerGraph
from baechi.records.pipeline.units import NOWHERE, Units
from baechi.records.plan import Plan


@dataclass(frozen=True)
class Placeable:
    """What the stages of all placements of a graph have in common.

    Args:
        names: the nodes in code order.
        edges: pairs of nodes, sorted; none with an end on the host.
        graded: those along which a gradient comes back.
        on_host: by node, whether it runs on the host: a functional op that reads only inputs.
        training: whether there is a backward.
        weights_part: by node, the part of its backward that is for its weights alone, if that is apart.
    """

    names: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    graded: frozenset[tuple[int, int]]
    on_host: tuple[bool, ...]
    training: bool
    weights_part: tuple[float, ...] = ()

    @classmethod
    def of(cls, graph: LayerGraph) -> "Placeable":
        """Look at a graph."""
        names, costs = graph.code_order(), dict(graph.placed_costs())
        place = {name: number for number, name in enumerate(names) if not costs[name].on_host}
        found: dict[tuple[int, int], bool] = {}
        for source, targets in graph.adjacency():
            for target, data in targets.items():
                if source in place and target in place:
                    edge = EdgeCosts.of(data)
                    found[place[source], place[target]] = not (edge.no_grad or edge.order_only)
        graded = frozenset([ends for ends, sends in found.items() if sends])
        handing_on = {reader for _, reader in graded}
        parts = [
            costs[name].weights_part if number in handing_on else 0.0 for number, name in enumerate(names)
        ]
        return cls(
            names,
            tuple(sorted(found)),
            graded,
            tuple([costs[name].on_host for name in names]),
            graph.training,
            tuple(parts) if graph.training and graph.graph.get("weights_apart") else (),
        )

    def units(self, device_of: Sequence[int]) -> Units:
        """The stages and runs of a placement."""
        pairs = zip(device_of, self.on_host, strict=True)
        where = [NOWHERE if on_host else device for device, on_host in pairs]
        units = Units.of(self.edges, self.graded, where, training=self.training)
        if not self.weights_part:
            return units
        return units.with_weights_apart([part > 0 for part in self.weights_part])


def units_of(plan: Plan) -> Units:
    """The stages and runs of a plan. Functional ops that read only inputs run on the host."""
    graph = Placeable.of(plan.graph)
    devices = {name: index for index, name in enumerate(plan.cluster.names)}
    return graph.units([devices[plan.device_of[name]] for name in graph.names])
