"""Devices as the runtime sees them: places, streams, copies; the one room that may say CUDA."""

import torch

from baechi.backend.abstract import AbstractBackend
from baechi.backend.memory_error import DeviceMemoryError
from baechi.backend.torch_devices import TorchDevices
from baechi.backend.torch_streams import device_behind
from baechi.backend.virtual import VirtualDevices, unwatched
from baechi.records.cluster import Cluster


def backend_of(cluster: Cluster) -> AbstractBackend:
    """The backend that runs a cluster.

    Args:
        cluster: emulated, or with device names that torch understands.
    """
    return VirtualDevices(cluster.names) if cluster.emulated else TorchDevices(cluster.names)


def is_here(name: str) -> bool:
    """Whether torch can put tensors on a device.

    Args:
        name: a device's name.
    """
    try:
        torch.empty(0, device=device_behind(name))
    except (RuntimeError, AssertionError):  # no such name, torch was built without it, or it is not there
        return False
    return True


__all__ = ["AbstractBackend", "DeviceMemoryError", "backend_of", "is_here", "unwatched"]
