"""What a plan and its graph say about layers, worked out once a model."""

from collections.abc import Iterator

from baechi.records.plan import Plan


def readers_and_writers(plan: Plan) -> tuple[frozenset[str], frozenset[str]]:
    """Modules that write nothing that others read, and modules that write only their arguments.

    A module that did not run during capture is in neither set.
    """
    writes: dict[str, set[str]] = {}
    for node, costs in plan.graph.placed_costs():
        if not costs.unread:
            kinds = writes.setdefault(plan.graph.module_of(node), set())
            if costs.writes:
                kinds.add(costs.writes)
    only_read = frozenset(module for module, kinds in writes.items() if not kinds)
    return only_read, frozenset(module for module, kinds in writes.items() if kinds == {"given"})


def receivers(plan: Plan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """By layer, the other devices that read its output, in the code's order of reading.

    These outputs are sent ahead. A view of an output, or one of several outputs, is sent when it is used.
    So is an output that the host reads, since the host would block until it arrives.
    """
    on_host, graph = plan.cluster.on_host, plan.graph
    for node in plan.graph.placed():
        own = plan.device_of[node]
        edges = {reader: graph.edge_costs(node, reader) for reader in graph.successors(node)}
        reading = [
            plan.device_of[reader]
            for reader, costs in edges.items()
            if not costs.order_only and not costs.on_demand
        ]
        others = tuple(dict.fromkeys([d for d in reading if d != own and d not in on_host]))
        if others:
            yield node, others
