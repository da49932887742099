"""Devices as the runtime sees them: places, streams, copies. One interface, two kinds.

In:    a cluster.
Out:   the backend that runs it, and transfers of tensors between its places.
Start: `abstract`, then `transfer`.
"""

from baechi.backend.abstract import AbstractBackend
from baechi.backend.memory_error import DeviceMemoryError
from baechi.backend.processes import size_here
from baechi.backend.ranks.devices import TorchRanks
from baechi.backend.ranks.emulated import VirtualRanks
from baechi.backend.ranks.rendezvous import wires
from baechi.backend.real.devices import TorchDevices
from baechi.backend.real.streams import is_here
from baechi.backend.virtual import VirtualDevices, aside, set_aside, suspended, unwatched
from baechi.records.cluster import Cluster


def backend_of(cluster: Cluster) -> AbstractBackend:
    """The backend that runs a cluster."""
    if cluster.emulated and cluster.ranks and size_here() > 1:
        return VirtualRanks(cluster.names, wires())
    if cluster.ranks and not cluster.emulated:
        return TorchRanks(cluster.names, wires())
    return VirtualDevices(cluster.names) if cluster.emulated else TorchDevices(cluster.names)


__all__ = [
    "AbstractBackend",
    "DeviceMemoryError",
    "aside",
    "backend_of",
    "is_here",
    "set_aside",
    "suspended",
    "unwatched",
]
