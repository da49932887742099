"""Devices that wait for a favourite child: the states of m-SCT.

busy    The device runs a layer.
awake   Its last layer has a favourite child, which could start on no device earlier than here. The device
        waits for the child. Until then it runs only urgent layers: those that could start by then on any
        device, so that leaving them to another device gains nothing.
free    Otherwise. It takes the layer that can start earliest, as in m-ETF.

After Hanen and Munier (ETFA 1995) and Jeon et al. (SoCC 2020).
"""

from typing import Protocol

from baechi.place.ledger import Ledger
from baechi.place.listing.availability import Availability
from baechi.place.task import ANYWHERE, Task

NO_DEVICE = -1

Head = tuple[float, int, float, int]


class Schedule(Protocol):
    """The part of a schedule under construction that is used here."""

    task: Task
    ledger: Ledger
    clock: Availability

    def start_s(self, layer: int, device: int) -> float | None:
        """See `Listing`."""

    def starts_s(self, layer: int) -> dict[int, float]:
        """When a layer could start, by device where it fits."""


class Awake:
    """Which devices wait for which favourite children.

    Args:
        child_of: favourite child by layer.
        devices: how many.
    """

    def __init__(self, child_of: dict[int, int], devices: int) -> None:
        self._child_of = child_of
        self._parent_of = {child: parent for parent, child in child_of.items()}
        self._last = [NO_DEVICE] * devices
        self._child = [NO_DEVICE] * devices
        self._ready: dict[int, None] = {}

    def announced(self, layer: int) -> int:
        """Note that a layer's predecessors have run.

        Args:
            layer: the layer.

        Returns:
            The device that is awake for it now, or `NO_DEVICE`.
        """
        self._ready[layer] = None
        parent = self._parent_of.get(layer, NO_DEVICE)
        device = self._last.index(parent) if parent != NO_DEVICE and parent in self._last else NO_DEVICE
        if device != NO_DEVICE:
            self._child[device] = layer
        return device

    def ran(self, layer: int, device: int) -> list[int]:
        """Note that a layer has run.

        Args:
            layer: the layer.
            device: where.

        Returns:
            The devices that waited for it, and wait no longer.
        """
        self._ready.pop(layer, None)
        self._last[device] = layer
        self._child[device] = NO_DEVICE
        waited = [d for d, child in enumerate(self._child) if child == layer]
        for other in waited:
            self._child[other] = NO_DEVICE
        return waited

    def is_awake(self, device: int) -> bool:
        """Whether a device waits for a favourite child.

        Args:
            device: the device.
        """
        return self._child[device] != NO_DEVICE

    def let_down(self, device: int) -> None:
        """Let a device wait no longer: the child would start earlier elsewhere, or does not fit here.

        Args:
            device: the device.
        """
        self._child[device] = NO_DEVICE

    def head(self, listing: Schedule, device: int) -> Head | None:
        """What an awake device does next.

        Args:
            listing: the schedule so far.
            device: an awake device.

        Returns:
            Start, layer, end, device. None if it is free after all, since the child would start earlier
            elsewhere, or does not fit here.
        """
        child, work_s = self._child[device], listing.task.work_s[device]
        starts = listing.starts_s(child)
        if device not in starts or starts[device] > min(starts.values()):
            return None
        start_s, layer = self._urgent(listing, device, starts[device]) or (starts[device], child)
        return start_s, layer, start_s + work_s[layer], device

    def _urgent(self, listing: Schedule, device: int, until_s: float) -> tuple[float, int] | None:
        """The earliest urgent layer, one that could start on any device by a time: (when, layer)."""
        everywhere_s = max(listing.clock.free_s)
        found = []
        for layer in self._ready:
            group = listing.task.indexed.group_of[layer]
            where = listing.ledger.device_of[group]
            if layer == self._child[device] or where not in (ANYWHERE, device):
                continue
            if where == ANYWHERE and everywhere_s > until_s:
                continue
            here_s = listing.start_s(layer, device)
            if here_s is None or here_s > until_s:  # true of most layers, and cheap to find out
                continue
            when_s = max(listing.starts_s(layer).values())
            if when_s <= until_s:
                found.append((max(when_s, listing.clock.free_s[device]), layer))
        return min(found, default=None)
