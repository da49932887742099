"""Which profiler measures which kind of device: in place where the model fits one, else layer by layer."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import nn

from baechi import run as run_room
from baechi.backend import is_here
from baechi.backend.real.driver import DRIVER
from baechi.backend.real.stopwatch import Stopwatch
from baechi.backend.real.streams import device_behind
from baechi.cost.memory import step_bytes
from baechi.cost.own_work import host_costs_of
from baechi.errors import CaptureError
from baechi.measure import estimate_issue, launch_seconds, measure, measure_layers
from baechi.records.cluster import Cluster
from baechi.records.device import Device
from baechi.records.graph import LayerGraph
from baechi.records.inputs import Inputs
from baechi.records.plan import Plan
from baechi.torchlib.host_memory import free_host_bytes
from baechi.torchlib.modules.arguments import Arguments
from baechi.torchlib.modules.on_meta import is_on_meta
from baechi.torchlib.tensors.swap_memory import exchange
from baechi.units import format_bytes

logger = logging.getLogger(__name__)

Way = Literal["auto", "hooks", "layers"]


class Captured(NamedTuple):
    """One run of a model that was captured.

    Args:
        graph: its layer graph.
        inputs: what it was run with.
        arguments: what each layer was called with.
    """

    graph: LayerGraph
    inputs: Inputs
    arguments: Mapping[str, Arguments]


def is_measurable(cluster: Cluster) -> bool:
    """Whether all devices are this machine's: they are here, or the CPU stands for them."""
    return _is_cpu(cluster) or _is_real(cluster)


def measure_on(
    cluster: Cluster, model: nn.Module, runs: Sequence[Captured], *, way: Way, rounds: int
) -> None:
    """Put measured seconds on the graphs of a model."""
    if not is_measurable(cluster):
        kinds = ", ".join(sorted({device.kind for device in cluster.devices}))
        logger.warning(
            "source='%s' measures this machine's CPU, and the seconds are used for %s, which is not here: "
            "source='estimate' takes datasheets",
            way,
            kinds,
        )
    devices = _kinds(cluster) if _is_real(cluster) else [None]
    if _is_real(cluster):
        watches = [Stopwatch(device_behind(device.name)) for device in devices if device is not None]
        with_streams = next((watch for watch in watches if watch.has_streams), None)
        launch_s = cluster.launch_s if with_streams is None else launch_seconds(with_streams)
        for run in runs:  # what is not measured keeps it
            host = host_costs_of(run.graph, cluster)
            estimate_issue(run.graph, launch_s, host)
    for device in reversed(devices):  # the host's time is that for the first kind
        if way == "hooks" or (way == "auto" and _fits(model, runs, device)):
            try:
                _in_place(model, runs, device, rounds)
                continue
            except (CaptureError, torch.OutOfMemoryError) as error:
                if way == "hooks" or device is None:
                    raise
                logger.warning("measured layer by layer: it does not run on %s: %s", device.name, str(error))
        for run in runs:
            measure_layers(model, run.graph, run.arguments, rounds=rounds, device=device)


def _in_place(model: nn.Module, runs: Sequence[Captured], device: Device | None, rounds: int) -> None:
    for run in runs:
        stays = device is None or (device.name == "cpu" and _homes(model) <= {"cpu"})
        placed = None if device is None or stays else _on(device, model, run.graph)
        measure(model, run.inputs, run.graph, rounds=rounds, device=device, placed=placed)


def _homes(model: nn.Module) -> set[str]:
    """Where the weights of a model lie."""
    return {str(tensor.device) for tensor in (*model.parameters(), *model.buffers())}


@contextmanager
def _on(device: Device, model: nn.Module, graph: LayerGraph) -> Iterator[None]:
    """A model on one device, with its inputs; afterwards its weights have the memory that they had."""
    weights = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    found = [(tensor, tensor.data) for tensor in weights.values()]
    home = min(_homes(model), default="cpu")
    plan = Plan.from_device_map(graph, Cluster((device,)), {"": device.name})
    run_room.assign(model, plan)
    try:
        yield
    finally:
        for tensor, data in found:  # nothing has to travel back
            tensor.grad = None
            exchange(tensor, data)
        run_room.restore(model, home)
        DRIVER.empty_cache()


def _kinds(cluster: Cluster) -> list[Device | None]:
    """Of each kind the device with the most memory: whole, if it is part of a GPU."""
    found: dict[str, Device] = {}
    for device in cluster.devices:
        if device.kind not in found or device.memory_bytes > found[device.kind].memory_bytes:
            found[device.kind] = device
    return [replace(device, name=str(device_behind(device.name))) for device in found.values()]


def _fits(model: nn.Module, runs: Sequence[Captured], device: Device | None) -> bool:
    """Whether a model's step fits a device; None is the CPU."""
    is_host = device is None or device.name == "cpu"
    room_bytes = free_host_bytes() if device is None or is_host else device.memory_bytes
    needed_bytes = max([step_bytes(run.graph) for run in runs])
    if needed_bytes > room_bytes:
        logger.info(
            "measured layer by layer: a step takes %s of %s",
            format_bytes(needed_bytes),
            format_bytes(room_bytes),
        )
    return needed_bytes <= room_bytes and not is_on_meta(model)


def _is_cpu(cluster: Cluster) -> bool:
    return all(device.kind == "cpu" for device in cluster.devices)


def _is_real(cluster: Cluster) -> bool:
    return not cluster.emulated and not _is_cpu(cluster) and all(map(is_here, cluster.names))
