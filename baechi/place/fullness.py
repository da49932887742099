"""Whether the predicted peaks of a plan fit the memory of its devices, the error if not; other limits."""

from collections.abc import Mapping
from dataclasses import replace

from baechi.cost.gpus import is_gpu
from baechi.errors import PlacementError
from baechi.records.cluster import Cluster
from baechi.records.device import excess_over, shortage
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan

NO_LIMIT_BYTES = 2**62
"""More memory than any model needs."""


def excess_bytes(plan: Plan) -> dict[str, int]:
    """By how many bytes a plan's timeline exceeds the memory of devices."""
    timeline, taken = plan.timeline, dict(plan.timeline.peak_bytes)
    for device in plan.cluster.devices if not plan.cluster.emulated else ():
        if is_gpu(device):
            taken[device.name] = max(taken.get(device.name, 0), timeline.reserved_bytes.get(device.name, 0))
    return excess_over(plan.cluster.devices, taken)


def within_memory(plan: Plan) -> Plan:
    """The plan itself, if its simulated peaks fit every device's memory."""
    if excess_bytes(plan):
        raise too_full(plan)
    return plan


def too_full(plan: Plan) -> PlacementError:
    """The error for a plan that does not fit the memory of devices."""
    excess = excess_bytes(plan)
    return PlacementError(
        f"the {plan.placer} placement needs more memory than there is on {shortage(excess)}: use more or "
        f"larger devices, a smaller batch{recompute_helps(plan.graph)}, or another placer",
        short_bytes=excess,
    )


def recompute_helps(graph: LayerGraph) -> str:
    """A cure, as a part of a list: modules may run again in backward; nothing if they do, or cannot."""
    able = graph.training and not graph.graph.get("recompute") and graph.says("saved_bytes")
    return ", recompute='auto' (backward runs blocks again)" if able else ""


def resized(cluster: Cluster, by_bytes: Mapping[str, int]) -> Cluster:
    """The same devices with more or less memory, as a budget for placers."""
    sizes = [max(0, device.memory_bytes + by_bytes.get(device.name, 0)) for device in cluster.devices]
    pairs = zip(cluster.devices, sizes, strict=True)
    return replace(cluster, devices=tuple([replace(device, memory_bytes=size) for device, size in pairs]))


def without_limits(cluster: Cluster) -> Cluster:
    """The same devices, with room for everything."""
    return resized(cluster, dict.fromkeys(cluster.names, NO_LIMIT_BYTES))
