"""The emulated cluster: devices in this process, with clocks, streams and memory, and no GPU."""

from baechi.backend.virtual.current import unwatched
from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.emulation import Emulation

__all__ = ["Emulation", "VirtualDevices", "unwatched"]
