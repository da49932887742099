"""The emulated cluster: devices that are places in this process, tried and tested without a GPU."""

from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.emulation import Emulation

__all__ = ["Emulation", "VirtualDevices"]
