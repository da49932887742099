"""What `with cluster:` turns on."""

from baechi.backend.real.timing import Timing
from baechi.backend.virtual import Emulation
from baechi.records.cluster import Cluster


def watched(cluster: Cluster) -> Emulation | Timing:
    """Emulate a cluster, or time what runs on it.

    Args:
        cluster: an emulated cluster, or one of this machine.

    Raises:
        BaechiError: another cluster is emulated already, or this one's devices are not here.
    """
    return Emulation(cluster) if cluster.emulated else Timing(cluster)
