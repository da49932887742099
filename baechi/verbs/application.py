"""A plan made for other devices, on the devices that are here.

    the plan's device:0  A100-80GB ──▶ cuda:0  A100-80GB    the i-th of a kind is the i-th of that kind
    the plan's device:1  L4        ──▶ cuda:2  L4

If that leaves a device without enough memory, the devices that the plan uses are taken alone: in order, then
by memory. Enough is the peak that the plan predicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import networkx as nx

from baechi.backend import is_here
from baechi.backend.real.discover import has_accelerator
from baechi.errors import PlanError
from baechi.records.cluster import Cluster
from baechi.records.described.checks import hosts_of, links_among
from baechi.records.device import Device
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.units import format_bytes

Pairs = Sequence[tuple[Device, Device]]


def runs_here(cluster: Cluster) -> bool:
    """Whether the devices of a cluster are in this process: emulated, or known to torch."""
    return cluster.emulated or all(map(is_here, cluster.names))


def applied(plan: Plan, cluster: Cluster | None = None) -> Plan:
    """A plan, for devices that are here."""
    if cluster is None and runs_here(plan.cluster):
        return plan
    target = _visible() if cluster is None else cluster
    if target == plan.cluster and runs_here(plan.cluster):
        return plan
    needed_bytes = {name: _needed_bytes(plan, name, target) for name in plan.devices_used}
    pairs = _matched(plan.cluster, needed_bytes, target)
    if target is None or pairs is None or not runs_here(target):
        raise _refusal("the plan needs", plan.cluster, needed_bytes, target)
    return renamed(plan, target, {planned.name: there.name for planned, there in pairs})


def located(cluster: Cluster) -> Cluster:
    """The devices to plan for where a model is to run at once: a cluster's own, if they are here."""
    if runs_here(cluster):
        return cluster
    target, needed_bytes = _visible(), dict.fromkeys(cluster.names, 0)
    pairs = _matched(cluster, needed_bytes, target)
    if target is None or pairs is None:
        raise _refusal("the cluster is", cluster, {}, target)
    devices = [
        replace(there, memory_bytes=min(planned.memory_bytes, there.memory_bytes)) for planned, there in pairs
    ]
    links = links_among(devices, target.links)
    return replace(target, devices=tuple(devices), links=links, hosts=hosts_of(devices, target.hosts))


def _visible() -> Cluster | None:
    return Cluster.discover() if has_accelerator() else None


def _needed_bytes(plan: Plan, name: str, target: Cluster | None) -> int:
    """What a device of the plan holds at most; on real ones, what torch's allocator reserves."""
    timeline = plan.timeline
    needed = timeline.peak_bytes.get(name, 0)
    return needed if target is None or target.emulated else max(needed, timeline.reserved_bytes.get(name, 0))


def _matched(cluster: Cluster, needed_bytes: Mapping[str, int], target: Cluster | None) -> Pairs | None:
    """A device of the target for each one that is needed; None if there are not enough."""
    if target is None:
        return None
    ways: list[Pairs] = [[], [], []]
    for kind in dict.fromkeys([cluster.device(name).kind for name in needed_bytes]):
        there = [device for device in target.devices if device.kind == kind]
        same = [device for device in cluster.devices if device.kind == kind]
        used = [device for device in same if device.name in needed_bytes]
        if len(used) > len(there):
            return None
        large_first = sorted(there, key=lambda device: -device.memory_bytes)
        hungry_first = sorted(used, key=lambda device: -needed_bytes[device.name])
        by_place = [pair for pair in zip(same, there, strict=False) if pair[0].name in needed_bytes]
        ways[0] = [*ways[0], *by_place]
        ways[1] = [*ways[1], *zip(used, there, strict=False)]
        ways[2] = [*ways[2], *zip(hungry_first, large_first, strict=False)]
    for way in ways:
        enough = all(there.memory_bytes >= needed_bytes[planned.name] for planned, there in way)
        if enough and len(way) == len(needed_bytes):
            place = {device.name: index for index, device in enumerate(cluster.devices)}
            return sorted(way, key=lambda pair: place[pair[0].name])
    return None


def seats(plan: Plan, target: Cluster) -> dict[str, str]:
    """By device that a plan uses, the one of its kind in a cluster of other processes."""
    needed_bytes = {name: _needed_bytes(plan, name, target) for name in plan.devices_used}
    pairs = _matched(plan.cluster, needed_bytes, target)
    if pairs is None:
        raise _refusal("the plan needs", plan.cluster, needed_bytes, target)
    return {planned.name: there.name for planned, there in pairs}


def renamed(plan: Plan, target: Cluster, there: Mapping[str, str]) -> Plan:
    """A plan whose devices have other names."""
    graph = plan.graph
    if graph.says("pin"):
        pins = {node: there[costs.pin] for node, costs in graph.placed_costs() if costs.pin is not None}
        graph = LayerGraph.from_networkx(graph)
        nx.set_node_attributes(graph, pins, "pin")
    candidates = [
        replace(one, peak_bytes={there[name]: size for name, size in one.peak_bytes.items() if name in there})
        for one in plan.candidates
    ]
    return replace(
        plan,
        graph=graph,
        cluster=target,
        device_of={node: there[name] for node, name in plan.device_of.items()},
        candidates=tuple(candidates),
        dry=None,
    )


def _refusal(
    what: str, cluster: Cluster, needed_bytes: Mapping[str, int], target: Cluster | None
) -> PlanError:
    """The error that has both lists of devices."""
    wanted = [
        f"{device.name} ({device.kind}{_with_bytes(needed_bytes, device.name)})"
        for device in cluster.devices
        if device.name in needed_bytes or not needed_bytes
    ]
    devices = target.devices if target is not None else ()
    found = [f"{device.name} ({device.kind}, {format_bytes(device.memory_bytes)})" for device in devices]
    kinds = ", ".join(f'"{device.kind}"' for device in cluster.devices)
    return PlanError(
        "these devices are not here, or have too little memory:",
        (
            f"{what} {', '.join(wanted)}",
            f"there are {', '.join(found) or 'no accelerators'}",
            f"without them run on emulated devices: cluster=baechi.Cluster.virtual(like=[{kinds}])",
        ),
    )


def _with_bytes(needed_bytes: Mapping[str, int], name: str) -> str:
    return f", {format_bytes(needed_bytes[name])}" if name in needed_bytes else ""
