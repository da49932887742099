"""Seconds of what was not measured: its estimate, scaled as the measurements relate to theirs."""

from collections.abc import Collection
from typing import Any

from baechi.cost.roofline import Work, layer_s
from baechi.records.datasheet import datasheet
from baechi.records.device import Device
from baechi.records.graph import LayerGraph


def scale_others(graph: LayerGraph, measured: Collection[str], device: Device | None = None) -> None:
    """Put seconds on the nodes that were not measured.

    Args:
        graph: a graph with measured seconds on some nodes.
        measured: these.
        device: on which they were measured, if seconds are by kind of device.
    """
    for attribute, backward in (("forward_s", False), ("backward_s", True))[: 1 + graph.training]:
        guessed_s = sum(_guess_s(graph, name, backward, device) for name in measured)
        measured_s = sum(_seconds(graph, name, attribute, device) for name in measured)
        for name in graph.placed():
            if name not in measured:
                scale = measured_s / guessed_s if guessed_s else 1.0
                seconds = _guess_s(graph, name, backward, device) * scale
                put_seconds(graph.nodes[name], attribute, seconds, device)


def put_seconds(data: dict[str, Any], attribute: str, seconds: float, device: Device | None) -> None:
    """Put seconds on a node.

    Args:
        data: its attributes.
        attribute: `"forward_s"` or `"backward_s"`.
        seconds: how long it takes.
        device: whose kind they are for; None: one number, for a device of speed 1.
    """
    if device is None:
        data[attribute] = seconds
    else:
        before = data.get(attribute)
        data[attribute] = {**(before if isinstance(before, dict) else {}), device.kind: seconds}


def _seconds(graph: LayerGraph, name: str, attribute: str, device: Device | None) -> float:
    if device is None:
        return graph.amount(name, attribute)
    return graph.seconds(name, attribute, device.kind) if graph.nodes[name].get(attribute) else 0.0


def _guess_s(graph: LayerGraph, name: str, backward: bool, device: Device | None) -> float:
    known = device is not None and device.flops_per_s and device.bytes_per_s
    sheet = device if device is not None and known else _HOST
    work = Work.of(graph, name, backward=backward)
    return layer_s(sheet, work.flops, work.moved_bytes, graph.costs(name).dtype)


_HOST = Device("this machine", **datasheet("CPU"))
