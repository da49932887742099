"""When transfers start and end: the one rule, for placers, simulator and emulated devices.

A channel carries one transfer at a time, first come, first served. With `reception="serial"` each
device has one channel for all that it receives; with `"free"` each ordered pair of devices has its own.
Where the devices of a host share a network card (`Host.one_card`), that is the channel of what comes from
other hosts. To ignore the queue makes a step look up to two times shorter than it is, and the placements that
follow from it are as much worse.
"""

from collections.abc import Iterable

from baechi.records import Cluster


class Channels:
    """The queues of a cluster's channels. Devices are their place in it, the host comes after the last.

    Args:
        cluster: the devices, and how they receive.
    """

    def __init__(self, cluster: Cluster) -> None:
        ends = len(cluster) + 1
        self._stride = ends if cluster.reception == "free" else 0
        own = ends * ends if self._stride else ends
        place = {name: number for number, name in enumerate(cluster.names)}
        self._home = [-1] * ends
        self._cards: dict[int, int] = {}
        for number, host in enumerate(cluster.hosts):
            for name in host.devices:
                self._home[place[name]] = number
                if host.one_card:
                    self._cards[place[name]] = own + number
        self._free_s = [0.0] * (own + len(cluster.hosts))

    def of(self, source: int, target: int) -> int:
        """The channel that carries what goes from one device to another."""
        if self._cards and 0 <= self._home[source] != self._home[target] and target in self._cards:
            return self._cards[target]
        return self._stride * source + target

    def book(self, source: int, target: int, ready_s: float, duration_s: float) -> tuple[float, float]:
        """Put a transfer at the end of its queue."""
        channel = self.of(source, target)
        start_s = max(ready_s, self._free_s[channel])
        self._free_s[channel] = start_s + duration_s
        return start_s, self._free_s[channel]

    def last_arrival_s(self, target: int, transfers: Iterable[tuple[float, int, float]]) -> float:
        """When the last of several transfers would have arrived, if they were booked now."""
        last_s = 0.0
        if not self._stride and not self._cards:  # one channel for all: each arrives after the one before
            free_at_s = self._free_s[target]
            for ready_s, _, duration_s in transfers:
                free_at_s = last_s = max(ready_s, free_at_s) + duration_s
            return last_s
        free_s: dict[int, float] = {}
        for ready_s, source, duration_s in transfers:
            channel = self.of(source, target)
            end_s = max(ready_s, free_s.get(channel, self._free_s[channel])) + duration_s
            free_s[channel] = end_s
            last_s = max(last_s, end_s)
        return last_s
