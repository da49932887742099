"""Seconds of what was not measured: its estimate, scaled as the measurements relate to theirs."""

from collections.abc import Collection

from baechi.cost.roofline import Work, layer_s
from baechi.records.datasheet import datasheet
from baechi.records.device import Device
from baechi.records.graph import LayerGraph


def scale_others(graph: LayerGraph, measured: Collection[str]) -> None:
    """Put seconds on the nodes that were not measured.

    Args:
        graph: a graph with measured seconds on some nodes.
        measured: these.
    """
    for attribute, backward in (("forward_s", False), ("backward_s", True))[: 1 + graph.training]:
        guessed_s = sum(_guess_s(graph, name, backward) for name in measured)
        measured_s = sum(graph.amount(name, attribute) for name in measured)
        for name in graph.placed():
            if name not in measured:
                scale = measured_s / guessed_s if guessed_s else 1.0
                graph.nodes[name][attribute] = _guess_s(graph, name, backward) * scale


def _guess_s(graph: LayerGraph, name: str, backward: bool) -> float:
    host = Device("this machine", **datasheet("CPU"))
    work = Work.of(graph, name, backward=backward)
    return layer_s(host, work.flops, work.moved_bytes)
