"""Seconds from datasheets: what a layer computes and moves against what a device can do."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from baechi.cost.roofline import Work
from baechi.records.device import Device
from baechi.records.graph import LayerGraph

logger = logging.getLogger(__name__)


def estimate(graph: LayerGraph, devices: Iterable[Device], launch_s: float) -> None:
    """Put estimated seconds onto a graph, by kind of device.

    Args:
        graph: a captured graph, with `flops`, `moved_bytes` and `dtype`.
        devices: one time is made for each kind among them; times for other kinds stay.
        launch_s: seconds of host time to issue one kernel.

    Raises:
        ValueError: a device has no rates.
    """
    if graph.graph.get("uncounted"):
        logger.warning(
            "no formula says how much %s computes: its layers are estimated by the bytes that they move "
            "(measure them: source='hooks' or 'layers')",
            ", ".join(graph.graph["uncounted"]),
        )
    by_kind = {device.kind: device for device in devices}
    for name in graph.placed():
        data = graph.nodes[name]
        data["forward_s"] = _others(data, "forward_s") | {
            kind: _seconds(graph, name, device, False) for kind, device in by_kind.items()
        }
        if graph.training:
            data["backward_s"] = _others(data, "backward_s") | {
                kind: _seconds(graph, name, device, True) for kind, device in by_kind.items()
            }
    estimate_issue(graph, launch_s)


def estimate_issue(graph: LayerGraph, launch_s: float) -> None:
    """Put on a graph how long the host takes to issue each layer.

    Args:
        graph: a captured graph, with `kernels`.
        launch_s: seconds of host time to issue one kernel.
    """
    for name in graph.placed():
        data = graph.nodes[name]
        data["host_forward_s"] = Work.of(graph, name, backward=False).kernels * launch_s
        if graph.training:
            data["host_backward_s"] = Work.of(graph, name, backward=True).kernels * launch_s


def _others(data: Mapping[str, Any], attribute: str) -> dict[str, float]:
    """Times by kind that are there already."""
    known = data.get(attribute)
    return dict(known) if isinstance(known, Mapping) else {}


def _seconds(graph: LayerGraph, name: str, device: Device, backward: bool) -> float:
    return Work.of(graph, name, backward=backward).seconds(device, graph.costs(name).dtype) / device.speed
