"""Which devices are GPUs: torch then takes other kernels, and its caching allocator serves them."""

from baechi.records.cluster import Cluster
from baechi.records.datasheet import known_kinds
from baechi.records.device import Device


def is_gpu(device: Device) -> bool:
    """Whether a device is a GPU of this machine, or one to plan for."""
    planned_for = device.kind in known_kinds() and device.kind.lower() != "cpu"
    name = device.name.rpartition("/")[2]  # without its host
    return name.startswith("cuda") or (planned_for and name.startswith("device"))


def computes_on_gpus(cluster: Cluster) -> bool:
    """Whether the kernels of a step are those of GPUs."""
    return not cluster.emulated and any(map(is_gpu, cluster.devices))
