"""The emulated cluster, towards torch: tensors of the CPU that lie on devices of a cluster.

In:    a cluster, and the operations that torch runs inside `with cluster:`.
Out:   the same numbers, and for each operation its device, its stream and its bytes.
Start: `emulation`, then `devices`.
"""

from baechi.backend.virtual.current import aside, set_aside, suspended, unwatched
from baechi.backend.virtual.devices import VirtualDevices
from baechi.backend.virtual.emulation import Emulation

__all__ = ["Emulation", "VirtualDevices", "aside", "set_aside", "suspended", "unwatched"]
