"""What `with cluster:` turns on."""

from baechi.backend.real.timer import Timing
from baechi.backend.virtual import Emulation
from baechi.records.cluster import Cluster


def watched(cluster: Cluster) -> Emulation | Timing:
    """Emulate a cluster, or time what runs on it."""
    return Emulation(cluster) if cluster.emulated else Timing(cluster)
