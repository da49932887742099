"""Clusters of the test accelerator, and models on them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from order.interleaved import interleaved
from same import Result
from same import step as step_on_host
from torch import nn

import baechi
from accelerator import NAMES
from baechi import Cluster, Device

from .where import at, moved

FIRST = NAMES[0]


def cluster(*names: str) -> Cluster:
    """Devices, or parts of such, with the rates of a datasheet."""
    sheets = Cluster.uniform(len(names)).devices
    return Cluster(
        tuple(
            Device(name, sheet.kind, 2**32, 1.0, sheet.flops_per_s, sheet.bytes_per_s)
            for name, sheet in zip(names, sheets, strict=True)
        )
    )


TWO = cluster(*NAMES[:2])


def graph_of(model: nn.Module, inputs: Any, training: bool) -> baechi.LayerGraph:
    """The layer graph of a model, estimated."""
    return baechi.profile(model.train(training), inputs, cluster=TWO, training=training, source="estimate")


def placed(
    model: nn.Module,
    inputs: Any,
    where: Mapping[str, int],
    *,
    reorder: Any = True,
    training: bool = True,
    order: str = "",
) -> nn.Module:
    """A model with layers where a map says, on devices of the test accelerator.

    Args:
        model: the model.
        inputs: what it is captured with.
        where: device by name; `""` for all others.
        reorder: as `assign` takes it.
        training: whether it trains.
        order: layers, a letter each, in the order of the plan; the code's if empty.
    """
    graph = graph_of(model, inputs, training)
    devices = cluster(*NAMES[: max(where.values()) + 1])
    if order:
        plan = interleaved(graph, devices, {"": 0, **where}, order)
    else:
        plan = baechi.Plan.from_device_map(graph, devices, dict(where))
    return baechi.assign(model, plan, reorder=reorder)


def there(value: Any, place: str = FIRST) -> Any:
    """Values at a place; on the host if it is none."""
    return at(value, place) if place else value


def whole(build: Callable[[], nn.Module], place: str = FIRST) -> nn.Module:
    """The plain model on one device."""
    return moved(build(), place)


def step(model: nn.Module, inputs: dict[str, Any], *, training: bool, home: str = FIRST) -> Result:
    """A step with inputs at a place; its result on the host."""
    result = step_on_host(model, there(inputs, home), training=training)
    return Result(
        [tensor.cpu() for tensor in result.outputs],
        {name: None if grad is None else grad.cpu() for name, grad in result.grads.items()},
        {name: buffer.cpu() for name, buffer in result.buffers.items()},
    )


def on_host(model: nn.Module) -> nn.Module:
    """A module with a model's gradients, on the host."""
    made = nn.Module()
    for number, weight in enumerate(model.parameters()):
        own = nn.Parameter(weight.detach().cpu())
        own.grad = None if weight.grad is None else weight.grad.cpu()
        made.register_parameter(str(number), own)
    return made


def compute_on(streams: list[torch.Stream], after: list[torch.Stream]) -> None:
    """This thread computes on other streams from now on, one a device, behind what it computed on before."""
    for stream, before in zip(streams, after, strict=True):
        stream.wait_event(before.record_event())
        torch.accelerator.set_stream(stream)
    torch.accelerator.set_device_index(0)
