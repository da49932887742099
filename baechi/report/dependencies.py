"""The time of a step if dependencies between layers were its only limit."""

from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan


def dependencies_s(plan: Plan) -> float:
    """How long a step would take if each layer ran as soon as its inputs are made, on any device.

    Args:
        plan: the plan; its layers take what they take on their devices, transfers nothing.

    Returns:
        Seconds of forward and backward.
    """
    graph, total_s = plan.graph, 0.0
    devices = {device.name: device for device in plan.cluster.devices}
    for phase in ("forward_s", "backward_s") if graph.training else ("forward_s",):
        end_s: dict[str, float] = {}
        for name in plan.order:
            device = devices[plan.device_of[name]]
            start_s = max([end_s.get(parent, 0.0) for parent in _parents(graph, name, phase)], default=0.0)
            end_s[name] = start_s + graph.seconds(name, phase, device.kind, device.speed)
        total_s += max(end_s.values(), default=0.0)
    return total_s


def _parents(graph: LayerGraph, name: str, phase: str) -> list[str]:
    """What a layer depends on. `order_only` edges hold in forward, not in backward."""
    parents = graph.predecessors(name)
    return [p for p in parents if phase == "forward_s" or not graph.edge_costs(p, name).order_only]
