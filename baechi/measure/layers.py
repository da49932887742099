"""Seconds layer by layer: each distinct layer runs once, alone, so no model is too large.

Layers of one class that do the same operations on the same shapes take the same time: eighty equal
blocks cost what one costs. Some layers do not run alone: they need an object that cannot be
copied, or indices of unknown range. Those get their estimate, scaled as the others are to theirs.
"""

import logging
from collections.abc import Mapping

from torch import nn

from baechi.backend.real.stopwatch import Stopwatch
from baechi.backend.real.streams import device_behind
from baechi.measure.isolated_layer import Seconds, time_alone
from baechi.measure.scale import put_seconds, scale_others
from baechi.progress import progress
from baechi.records.device import Device
from baechi.records.device_map import ROOT
from baechi.records.graph import LayerGraph
from baechi.torchlib.modules.arguments import Arguments

logger = logging.getLogger(__name__)


def measure_layers(
    model: nn.Module,
    graph: LayerGraph,
    arguments: Mapping[str, Arguments],
    *,
    rounds: int = 20,
    device: Device | None = None,
) -> None:
    """Put measured seconds onto a graph."""
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}: measuring takes at least 1")
    modules = {name or ROOT: module for name, module in model.named_modules()}
    training = None if model.training == graph.training else graph.training  # as capture ran it
    distinct = [name for name in graph.placed() if _is_distinct(graph, name)]
    watch = Stopwatch(device_behind("cpu" if device is None else device.name))
    found: dict[str, Seconds] = {}
    with progress("measuring layers", len(distinct)) as advance:
        for name in distinct:
            layer, called_with = modules[graph.module_of(name)], arguments.get(name)
            seconds = _measured(layer, name, called_with, training=training, rounds=rounds, watch=watch)
            if seconds is not None:
                found[name] = seconds
            advance()
    measured = _write(graph, found, device, watch.has_streams)
    scale_others(graph, measured, device)
    logger.info("measured %d distinct layers of %d", len(found), len(measured))


def _is_distinct(graph: LayerGraph, name: str) -> bool:
    costs = graph.costs(name)
    return costs.kind == "layer" and costs.twin is None and not costs.unread


def _measured(
    layer: nn.Module,
    name: str,
    arguments: Arguments | None,
    *,
    training: bool | None,
    rounds: int,
    watch: Stopwatch,
) -> Seconds | None:
    if arguments is None:
        logger.warning("layer %s is estimated: what it is called with cannot be made up (a cache, say)", name)
        return None
    try:
        return time_alone(layer, arguments, training=training, rounds=rounds, watch=watch)
    except Exception as error:  # the model's own code failed on made-up values: no error of ours
        logger.warning(
            "layer %s is estimated: it does not run alone (%s: %s)", name, type(error).__name__, error
        )
        return None


def _write(
    graph: LayerGraph, found: Mapping[str, Seconds], device: Device | None, host_apart: bool
) -> set[str]:
    """Put seconds on the distinct layers and on those that do the same; returns their names."""
    measured = set()
    for name in graph.placed():
        data, costs = graph.nodes[name], graph.costs(name)
        seconds = found.get(costs.twin or name)
        if costs.kind == "layer" and costs.unread:
            measured.add(name)  # nothing runs
        elif seconds is not None:
            measured.add(name)
            put_seconds(data, "forward_s", seconds.forward.device_s, device)
            data["spread_s"] = seconds.spread_s
            data["temp_bytes"] = max(costs.temp_bytes, seconds.temp_bytes)
            if graph.training:
                put_seconds(data, "backward_s", seconds.backward.device_s, device)
            if host_apart:
                data["host_forward_s"] = seconds.forward.host_s
                data["host_backward_s"] = seconds.backward.host_s
    return measured
