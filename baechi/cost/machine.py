"""What the devices of a cluster share, and who gets it when: the one rule, simulated and emulated.

    host      issues kernels one after the other; each takes `launch_s`
    engine    one for each device: all its streams compute on it, one kernel at a time
    channel   carries one transfer at a time (`baechi.cost.channel`)

Who is ready first is served first; who is ready at the same time, in the order of issue. So both
ask in the order of time: the simulator's event loop, and the emulator's.
"""

from baechi.cost.channel import Channels
from baechi.cost.transfer import link_table, transfer_s
from baechi.records import Cluster


class Machine:
    """The engines and channels of a cluster. Devices are their place in it, the host comes after the last.

    Args:
        cluster: the devices.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._links = link_table(cluster)
        self._channels = Channels(cluster)
        self._free_s = [0.0] * (len(cluster) + 1)

    def compute(self, device: int, ready_s: float, duration_s: float) -> tuple[float, float]:
        """Run something on a device's engine.

        Args:
            device: which one.
            ready_s: when everything that it needs is there and the host has issued it.
            duration_s: how long it runs.

        Returns:
            When it starts and when it ends.
        """
        start_s = max(ready_s, self._free_s[device])
        self._free_s[device] = start_s + duration_s
        return start_s, start_s + duration_s

    def send(self, source: int, target: int, ready_s: float, size_bytes: int) -> tuple[float, float]:
        """Send a tensor over a link.

        Args:
            source: where it is.
            target: where it goes.
            ready_s: when it can leave.
            size_bytes: its size.

        Returns:
            When it starts and when it has arrived.
        """
        duration_s = transfer_s(self._links[source][target], size_bytes)
        return self._channels.book(source, target, ready_s, duration_s)


def issue_s(now_s: float, duration_s: float, launch_s: float) -> tuple[float, float]:
    """The host issues the kernels of a layer.

    Args:
        now_s: when it comes to it.
        duration_s: how long it takes to issue all of them.
        launch_s: how long it takes to issue one.

    Returns:
        When the first kernel may start, and when the last has been issued.
    """
    return now_s + min(launch_s, duration_s), now_s + duration_s
