"""The placement that accelerate would make: `device_map="auto"`, by its own library.

It balances the bytes of the weights over the devices and cuts the model where they are reached. It
knows of no activations, gradients, optimizer or times; whether its placement trains is found by
simulating it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

from baechi.errors import BaechiError, PlacementError
from baechi.place.fullness import within_memory
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan


def is_installed() -> bool:
    """Whether there is an accelerate to ask."""
    return find_spec("accelerate") is not None


def accelerate_plan(model: nn.Module, graph: LayerGraph, cluster: Cluster) -> Plan:
    """Place a model as accelerate would.

    Args:
        model: the model; it may be on the `meta` device.
        graph: its layer graph; accelerate keeps the classes whole that are whole here.
        cluster: the devices, in the order in which they are filled.

    Returns:
        A plan in code order.

    Raises:
        BaechiError: accelerate is not installed.
        PlacementError: it leaves weights to the host or the disk, or its placement needs more memory
            than the devices have.
        PlanError: it tears layers that must share a device.
    """
    if not is_installed():
        raise BaechiError("accelerate is not installed: pip install accelerate")
    mapping = _device_map(model, cluster, _whole_classes(model, graph))
    left = [name for name, device in mapping.items() if device in ("cpu", "disk")]
    if left:
        raise PlacementError(
            f"accelerate's device map leaves {len(left)} modules to the host, the first is {left[0]!r}: "
            "the weights do not fit on the devices",
            layer=left[0],
        )
    return within_memory(replace(Plan.from_device_map(graph, cluster, mapping), placer="accelerate"))


def _device_map(model: nn.Module, cluster: Cluster, whole: list[str]) -> dict[str, int | str]:
    """Index of the device, `"cpu"` or `"disk"`, by name of a module or a weight."""
    modeling: Any = import_module("accelerate.utils.modeling")
    memory = {number: device.memory_bytes for number, device in enumerate(cluster.devices)}
    with _quiet(modeling.__name__):  # it warns of devices that this machine does not have
        balanced = modeling.get_balanced_memory(model, max_memory=memory, no_split_module_classes=whole)
        return dict(modeling.infer_auto_device_map(model, balanced, no_split_module_classes=whole))


def _whole_classes(model: nn.Module, graph: LayerGraph) -> list[str]:
    """The classes of modules with children that are one layer."""
    modules = dict(model.named_modules())
    names = modules.keys() & {graph.module_of(name) for name in graph.placed()}
    return sorted({type(modules[name]).__name__ for name in names if any(modules[name].children())})


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
