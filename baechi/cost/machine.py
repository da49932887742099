"""What the devices of a cluster share, and the order in which it serves; `baechi.cost.clock` asks.

    host      issues kernels one after the other; each takes `launch_s`
    engine    one for each device: all its streams compute on it, one kernel at a time
    channel   carries one transfer at a time (`baechi.cost.channel`)

The job that is ready first is served first; ties are served in the order of issue. `Machine` does not
sort: the clock asks in this order.
"""

from collections.abc import Sequence

from baechi.cost.channel import Channels
from baechi.cost.transfer import link_table, transfer_s
from baechi.records import Cluster
from baechi.records.layer_costs import LayerCosts
from baechi.records.timeline import Phase


class Machine:
    """The engines and channels of a cluster. Devices are given by index; the host comes after the last.

    Args:
        cluster: the devices.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._links = link_table(cluster)
        self._channels = Channels(cluster)
        # one number is enough: callers ask in the order of readiness, so no gap is filled later
        self._free_s = [0.0] * (len(cluster) + 1)

    def compute(
        self, device: int, ready_s: float, duration_s: float, least_s: float = 0.0
    ) -> tuple[float, float]:
        """Run a kernel, a layer or a task on a device's engine."""
        start_s = max(ready_s, self._free_s[device])
        over_s = start_s + duration_s
        self._free_s[device] = max(over_s, least_s)
        return start_s, over_s

    def send(self, source: int, target: int, ready_s: float, size_bytes: int) -> tuple[float, float]:
        """Send a tensor over a link."""
        duration_s = transfer_s(self._links[source][target], size_bytes)
        return self._channels.book(source, target, ready_s, duration_s)


def issue_s(now_s: float, duration_s: float, launch_s: float) -> tuple[float, float]:
    """When the host issues the kernels of a layer."""
    # the first kernel runs while the host issues the others; a graph without host times has 0 s here
    return now_s + min(launch_s, duration_s), now_s + duration_s


def last_part(host_s: float, launch_s: float) -> float:
    """The fraction of a layer's work that remains when its last kernel has been issued.

    Its kernels count as equally long.
    """
    return min(1.0, launch_s / host_s) if host_s > 0 else 0.0


def paced_s(over_s: float, now_s: float, kernels_s: float, work_s: float, launch_s: float) -> float:
    """When a layer is over that follows others on a device, which waits for nothing but its host."""
    first_s, last_s = issue_s(now_s, kernels_s, launch_s)
    return max(max(over_s, first_s) + work_s, last_s + last_part(kernels_s, launch_s) * work_s)


def host_s_of(layers: Sequence[LayerCosts], phase: Phase) -> list[float]:
    """By layer, how long the host takes to issue its kernels."""
    if phase == "backward":
        return [float(costs.host_backward_s) for costs in layers]
    return [float(costs.host_forward_s) for costs in layers]
