"""The accelerators that this process sees, as a cluster."""

import torch

from baechi.errors import BaechiError
from baechi.records.cluster import Cluster
from baechi.records.datasheet import datasheet, known_kinds, usual_link
from baechi.records.device import Device, Link

RESERVE_BYTES = 512 * 2**20
"""Kept free on each device: the driver's context grows, and the allocator rounds up."""


def has_accelerator() -> bool:
    """Whether this process sees an accelerator."""
    return torch.cuda.is_available()


def discover() -> Cluster:
    """The visible accelerators with the memory that is free on each, less a reserve.

    Returns:
        A cluster; a device whose model has a datasheet gets its rates and link from there.

    Raises:
        BaechiError: torch sees no accelerator, or none whose free memory it can tell.
    """
    if not has_accelerator():
        raise BaechiError(
            "no accelerator is visible: use baechi.Cluster.virtual(2) to run on emulated devices, "
            "or baechi.Cluster.uniform(2, like='A100-80GB') to plan for others"
        )
    devices = [_device(index) for index in range(torch.cuda.device_count())]
    kinds = {device.kind for device in devices}
    known = kinds & set(known_kinds())
    link = usual_link(sorted(known)[0]) if len(kinds) == 1 and known else Link()
    return Cluster(tuple(devices), link=link)


def _device(index: int) -> Device:
    free_bytes, _ = torch.cuda.mem_get_info(index)
    reported = torch.cuda.get_device_name(index)
    kind = next((k for k in known_kinds() if _matches(k, reported)), reported)
    rates = datasheet(kind) if kind in known_kinds() else {}
    rates["memory_bytes"] = max(0, free_bytes - RESERVE_BYTES)
    return Device(name=f"cuda:{index}", kind=kind, **rates)


def _matches(kind: str, reported: str) -> bool:
    """`"A100-80GB"` is in `"NVIDIA A100-SXM4-80GB"`: each part of the kind is there."""
    return all(part in reported.replace(" ", "-").split("-") for part in kind.split("-"))
