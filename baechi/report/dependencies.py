"""The time of a step if dependencies between layers were its only limit."""

from collections.abc import Callable

from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan


def dependencies_s(plan: Plan) -> float:
    """How long a step would take if each layer ran as soon as its inputs are made, on any device."""
    return _longest_s(plan, _on_its_device(plan))


def without_host_waits_s(plan: Plan) -> float:
    """As `dependencies_s`, if the host never waited for values that the code reads."""
    return _longest_s(plan, _on_its_device(plan), host_waits=False)


def dependencies_bound_s(plan: Plan) -> float:
    """What no plan of the graph can beat on any number of such devices: each layer on its fastest."""
    kinds = {(device.kind, device.speed) for device in plan.cluster.devices}

    def seconds(name: str, phase: str) -> float:
        return min([plan.graph.seconds(name, phase, kind, speed) for kind, speed in kinds])

    return _longest_s(plan, seconds)


def _on_its_device(plan: Plan) -> Callable[[str, str], float]:
    """The seconds of a layer in a phase on the device that the plan gives it."""
    devices = {device.name: device for device in plan.cluster.devices}

    def seconds(name: str, phase: str) -> float:
        device = devices[plan.device_of[name]]
        return plan.graph.seconds(name, phase, device.kind, device.speed)

    return seconds


def _longest_s(plan: Plan, seconds: Callable[[str, str], float], *, host_waits: bool = True) -> float:
    """The longest chain of dependencies in forward, plus that in backward."""
    graph, total_s = plan.graph, 0.0
    for phase in ("forward_s", "backward_s") if graph.training else ("forward_s",):
        end_s: dict[str, float] = {}
        for name in plan.order:
            parents = _parents(graph, name, phase, host_waits)
            start_s = max([end_s.get(parent, 0.0) for parent in parents], default=0.0)
            end_s[name] = start_s + seconds(name, phase)
        total_s += max(end_s.values(), default=0.0)
    return total_s


def _parents(graph: LayerGraph, name: str, phase: str, host_waits: bool) -> list[str]:
    """What a layer depends on. `order_only` edges hold in forward, not in backward."""
    found = []
    for parent in graph.predecessors(name):
        edge = graph.edge_costs(parent, name)
        if not edge.order_only or (phase == "forward_s" and (host_waits or not edge.host_waits)):
            found.append(parent)
    return found
