"""Devices as the runtime sees them: places, streams, copies; the one room that may say CUDA."""

from baechi.backend.abstract import AbstractBackend
from baechi.backend.memory_error import DeviceMemoryError
from baechi.backend.torch_devices import TorchDevices
from baechi.backend.torch_streams import is_here
from baechi.backend.virtual import VirtualDevices, unwatched
from baechi.records.cluster import Cluster


def backend_of(cluster: Cluster) -> AbstractBackend:
    """The backend that runs a cluster.

    Args:
        cluster: emulated, or with device names that torch understands.
    """
    return VirtualDevices(cluster.names) if cluster.emulated else TorchDevices(cluster.names)


__all__ = ["AbstractBackend", "DeviceMemoryError", "backend_of", "is_here", "unwatched"]
