"""Devices that wait for a favourite child: the states of m-SCT.

busy    The device runs a layer.
awake   Its last layer has a favourite child that is ready: all that the child depends on has ended. And the
        child could start on no device earlier than here. The device waits for it. Until then it runs only
        urgent layers: those that could start by then on any device, so that leaving them to another device
        gains nothing.
free    Otherwise. It takes the layer that can start earliest, as in m-ETF.

After Hanen and Munier (ETFA 1995) and Jeon et al. (SoCC 2020).
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol

from baechi.place.ledger import Ledger
from baechi.place.listing.availability import Availability
from baechi.place.problem import ANYWHERE, Problem

NO_DEVICE = -1

Head = tuple[float, int, float, int]


class Schedule(Protocol):
    """The part of a schedule under construction that is used here."""

    problem: Problem
    ledger: Ledger
    clock: Availability

    def start_s(self, layer: int, device: int) -> float | None:
        """See `Listing`."""

    def starts(self, layer: int, *, latest_first: bool = False) -> Iterator[tuple[float, int]]:
        """See `Listing`."""


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
        self._rival = [NO_DEVICE] * devices  # of devices let down: where the child could start earlier
        # by device, layers by a lower bound of the time when they get urgent; such bounds only grow
        self._urgent: list[list[tuple[float, int]]] = [[] for _ in range(devices)]
        self._bound_s: dict[int, float] = {}
        self._late: dict[int, int] = {}  # by layer, a device on which it could start late

    def announced(self, layer: int) -> int:
        """Note that a layer's predecessors have run."""
        if self._child_of and layer not in self._bound_s:
            self._bound_s[layer] = 0.0
            for urgent in self._urgent:
                heappush(urgent, (0.0, layer))
        parent = self._parent_of.get(layer, NO_DEVICE)
        device = self._last.index(parent) if parent != NO_DEVICE and parent in self._last else NO_DEVICE
        if device != NO_DEVICE:
            self._child[device] = layer
        return device

    def ran(self, layer: int, device: int) -> list[int]:
        """Note that a layer has run."""
        self._bound_s.pop(layer, None)
        self._last[device] = layer
        self._child[device] = self._rival[device] = NO_DEVICE
        changed = []
        for other, child in enumerate(self._child):
            if child != NO_DEVICE and (child == layer or self._rival[other] == device):
                changed.append(other)
                self._rival[other] = NO_DEVICE
                if child == layer:
                    self._child[other] = NO_DEVICE
        return changed

    def child(self, device: int) -> int:
        """The favourite child that a device waits for, or `NO_DEVICE`."""
        return self._child[device] if self._rival[device] == NO_DEVICE else NO_DEVICE

    def head(self, listing: Schedule, device: int) -> Head | None:
        """What an awake device does next."""
        child, work_s = self._child[device], listing.problem.work_s[device]
        here_s = listing.start_s(child, device)
        if here_s is None:
            self._child[device] = NO_DEVICE
            return None
        earliest_s, first = next(listing.starts(child))
        if here_s > earliest_s:
            self._rival[device] = first
            return None
        start_s, layer = self._earliest_urgent(listing, device, here_s) or (here_s, child)
        return start_s, layer, start_s + work_s[layer], device

    def _earliest_urgent(self, listing: Schedule, device: int, until_s: float) -> tuple[float, int] | None:
        """The layer that is urgent first, of those that are by a time: when it may start here, and itself."""
        urgent, child, found = self._urgent[device], self._child[device], None
        aside = []
        while urgent and urgent[0][0] <= until_s and found is None:
            bound_s, layer = heappop(urgent)
            where = listing.ledger.device_of[listing.problem.indexed.group_of[layer]]
            if layer not in self._bound_s or where not in (ANYWHERE, device):
                continue
            if layer == child:
                aside.append((bound_s, layer))
                continue
            known_s = self._bound_s[layer]
            if known_s == bound_s:
                known_s = self._bound_s[layer] = max(bound_s, self._urgent_s(listing, layer, until_s))
            if known_s == bound_s:
                here_s = listing.start_s(layer, device)
                if here_s is None:
                    continue
                found = max(known_s, here_s), layer
            heappush(urgent, (known_s, layer))
        for entry in aside:
            heappush(urgent, entry)
        return found

    def _urgent_s(self, listing: Schedule, layer: int, until_s: float) -> float:
        """From when on a layer could start on any device where it fits; a lower bound if that is too late."""
        if listing.ledger.device_of[listing.problem.indexed.group_of[layer]] == ANYWHERE:
            if (everywhere_s := max(listing.clock.free_s)) > until_s:
                return everywhere_s
            start_s = listing.start_s(layer, self._late.get(layer, 0))
            if start_s is not None and start_s > until_s:
                return start_s
        latest_s, self._late[layer] = next(listing.starts(layer, latest_first=True), (0.0, 0))
        return latest_s
