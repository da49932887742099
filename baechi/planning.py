"""From a graph to a plan, and from a plan to its timeline: nothing here needs torch."""

import functools
from collections.abc import Callable
from dataclasses import replace

from baechi.cost.memory import state_per_grad_byte
from baechi.errors import PlacementError
from baechi.place import find
from baechi.place.auto import best, check_effort
from baechi.place.rounds import Effort
from baechi.records.cluster import Cluster
from baechi.records.device import Device
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.records.timeline import Timeline
from baechi.simulate import Rehearsal, shortest_step_s
from baechi.simulate import simulate as run_simulation
from baechi.units import format_bytes

Placer = str | Callable[[LayerGraph, Cluster], Plan]

_TIGHTENINGS = 8


def place(
    graph: LayerGraph,
    cluster: Cluster,
    placer: Placer = "auto",
    *,
    optimizer: str | None = None,
    effort: Effort = 1,
) -> Plan:
    """Choose a device and an order for every layer.

    Args:
        graph: the layer graph.
        cluster: the devices.
        placer: as `distribute` takes it.
        optimizer: name of the optimizer whose state counts; the graph's own unless given.
        effort: how long `"auto"` searches, counted in simulations (1: about two seconds for 300 layers);
            0 not at all, `"max"` until nothing improves.

    Returns:
        A plan whose simulated peaks keep every device's memory.

    Raises:
        PlacementError: no placement was found that does.
        ValueError: an unknown placer or optimizer, or a negative effort.
    """
    state_per_grad_byte(optimizer)
    check_effort(effort)
    graph = with_optimizer(graph, optimizer)
    if placer == "auto":
        one_by_one = functools.partial(_place_within_memory, graph, cluster)
        rehearse, enough_s = Rehearsal(graph, cluster), shortest_step_s(graph, cluster)
        return best(graph, cluster, one_by_one, rehearse, effort=effort, enough_s=enough_s)
    return _place_within_memory(graph, cluster, placer)


def simulate(plan: Plan) -> Timeline:
    """Predict the step of a plan: when each layer runs, what travels, how full each device gets.

    Args:
        plan: the plan.

    Returns:
        The timeline.
    """
    return run_simulation(plan)


def with_optimizer(graph: LayerGraph, optimizer: str | None) -> LayerGraph:
    """The graph with its optimizer noted on it, so that a plan holds all that its memory depends on.

    Args:
        graph: the layer graph.
        optimizer: name of the optimizer; None leaves the graph as it is.
    """
    if optimizer is None or graph.graph.get("optimizer") == optimizer:
        return graph
    noted = LayerGraph.from_networkx(graph)
    noted.graph["optimizer"] = optimizer
    return noted


def _place_within_memory(graph: LayerGraph, cluster: Cluster, placer: Placer) -> Plan:
    """Place; where the simulated peak is above a device's memory, place again with less of it.

    Placers keep memory by a ledger of their own; the simulator, which knows when things happen,
    has the last word.
    """
    budget, make = cluster, find(placer)
    for _ in range(_TIGHTENINGS):
        plan = make(graph, budget)
        if plan.cluster is not cluster:
            plan = replace(plan, cluster=cluster)
        excess = _excess_bytes(plan)
        if not excess:
            return plan
        budget = replace(budget, devices=tuple(_smaller(d, excess.get(d.name, 0)) for d in budget.devices))
    return within_memory(plan)


def _smaller(device: Device, by_bytes: int) -> Device:
    return replace(device, memory_bytes=max(0, device.memory_bytes - by_bytes))


def _excess_bytes(plan: Plan) -> dict[str, int]:
    peaks = plan.timeline.peak_bytes
    over = {device.name: peaks.get(device.name, 0) - device.memory_bytes for device in plan.cluster.devices}
    return {name: excess for name, excess in over.items() if excess > 0}


def within_memory(plan: Plan) -> Plan:
    """The plan itself, if its simulated peaks keep every device's memory.

    Args:
        plan: any plan.

    Raises:
        PlacementError: a peak is above a device's memory.
    """
    excess = _excess_bytes(plan)
    if excess:
        short = ", ".join(f"{name} by {format_bytes(excess[name])} ({excess[name]} bytes)" for name in excess)
        raise PlacementError(
            f"the {plan.placer} placement needs more memory than there is on {short}: use more or larger "
            "devices, a smaller batch, or another placer",
            short_bytes=excess,
        )
    return plan
