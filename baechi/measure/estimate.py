"""Seconds from datasheets: what a layer computes and moves against what a device can do."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from baechi.cost.own_work import host_costs_of
from baechi.cost.roofline import BACKWARD_PER_FORWARD, Work
from baechi.records.cluster import Cluster
from baechi.records.datasheet import datasheet
from baechi.records.device import Device, HostCosts, HostWork
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts

logger = logging.getLogger(__name__)

_OPERATORS: tuple[HostWork, ...] = ("view", "operator", "product", "convolution")
_HOST = Device("this machine", **datasheet("CPU"))


def estimate(graph: LayerGraph, cluster: Cluster, devices: Iterable[Device] | None = None) -> None:
    """Put estimated seconds onto a graph, by kind of device; of all devices, if none are given."""
    if graph.graph.get("uncounted"):
        logger.warning(
            "no formula says how much %s computes: its layers are estimated by the bytes that they move "
            "(measure them: source='hooks' or 'layers')",
            ", ".join(graph.graph["uncounted"]),
        )
    by_kind = {device.kind: device for device in (cluster.devices if devices is None else devices)}
    for name in graph.placed():
        data = graph.nodes[name]
        data["forward_s"] = _others(data, "forward_s") | {
            kind: _seconds(graph, name, device, False) for kind, device in by_kind.items()
        }
        if graph.training:
            data["backward_s"] = _others(data, "backward_s") | {
                kind: _seconds(graph, name, device, True) for kind, device in by_kind.items()
            }
    estimate_issue(graph, cluster.launch_s, host_costs_of(graph, cluster))


def estimate_issue(graph: LayerGraph, launch_s: float, host: HostCosts) -> None:
    """Put on a graph how long the host takes to issue each layer: launches, and what torch does itself."""
    for name, costs in graph.placed_costs():
        data, work = graph.nodes[name], dict(costs.host_work or {})
        kernels = Work.of(graph, name, backward=False).kernels
        data["host_forward_s"] = kernels * launch_s + host.seconds_of(work)
        if graph.training:
            kernels = Work.of(graph, name, backward=True).kernels
            if graph.graph.get("backward_captured", False):
                work = _of_backward(costs, accumulate=graph.graph.get("accumulate", False))
            else:  # it calls no module, and records nothing
                work = {what: BACKWARD_PER_FORWARD * work.get(what, 0) for what in _OPERATORS}
            data["host_backward_s"] = kernels * launch_s + host.seconds_of(work)


def _of_backward(costs: LayerCosts, *, accumulate: bool) -> dict[HostWork, float]:
    """What torch does on the host in a backward, which puts or adds the gradient of each weight."""
    work, weights = dict(costs.backward_host_work or {}), Work.of_additions(costs).kernels
    each: tuple[HostWork, HostWork] = ("node", "operator" if accumulate else "view")
    return work | {what: work.get(what, 0) + weights for what in each}


def estimate_additions(graph: LayerGraph, devices: Iterable[Device], launch_s: float) -> None:
    """Add to measured seconds of backward what adding gradients to those of earlier steps takes.

    Measured steps begin without gradients.
    """
    by_kind = {device.kind: device for device in devices}
    for name, costs in graph.placed_costs():
        data, added = graph.nodes[name], Work.of_additions(costs)
        if isinstance(costs.backward_s, Mapping):
            data["backward_s"] = {
                kind: seconds + (_added_s(by_kind[kind], added) if kind in by_kind else 0.0)
                for kind, seconds in costs.backward_s.items()
            }
        else:
            data["backward_s"] = costs.backward_s + _added_s(_HOST, added)
        if "host_backward_s" in data:
            data["host_backward_s"] = costs.host_backward_s + added.kernels * launch_s


def _added_s(device: Device, added: Work) -> float:
    """0 of a device without a rate: its times are measured."""
    return added.seconds(device, LayerCosts.dtype) / device.speed if device.bytes_per_s else 0.0


def _others(data: Mapping[str, Any], attribute: str) -> dict[str, float]:
    """Times by kind that are there already."""
    known = data.get(attribute)
    return dict(known) if isinstance(known, Mapping) else {}


def _seconds(graph: LayerGraph, name: str, device: Device, backward: bool) -> float:
    return Work.of(graph, name, backward=backward).seconds(device, graph.costs(name).dtype) / device.speed
