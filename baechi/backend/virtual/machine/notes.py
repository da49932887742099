"""What happened in the memory of emulated devices, written down: for pictures, and for other allocators."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from baechi.backend.virtual.machine.caching_allocator import Event
from baechi.backend.virtual.machine.replay import reserved_bytes, segments_expand
from baechi.records.device import Device
from baechi.records.timeline import Timeline


class MemoryNotes:
    """Allocations and releases of each device, and how much it held when.

    Args:
        devices: with how much memory they have.

    Attributes:
        events: by device, what happened since the emulation began.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices
        self._curves: list[list[tuple[float, int]]] = [[] for _ in devices]
        self.events: list[list[Event]] = [[] for _ in devices]

    def restart(self, device: int, now_s: float, live_bytes: int) -> None:
        """Forget how much a device held so far."""
        self._curves[device] = [(now_s, live_bytes)]

    def held(self, device: int, now_s: float, live_bytes: int) -> None:
        """A device holds so much from now on."""
        self._curves[device].append((now_s, live_bytes))

    def added_to(self, timeline: Timeline, start_s: float) -> Timeline:
        """A timeline with what was written down."""
        live, reserved, expandable = {}, {}, segments_expand()
        for number, device in enumerate(self._devices):
            curve = self._curves[number]
            times = itertools.accumulate([max(0.0, time_s - start_s) for time_s, _ in curve], max)
            live[device.name] = tuple(zip(times, [size for _, size in curve], strict=True))
            reserved[device.name] = reserved_bytes(
                self.events[number], device.memory_bytes, expandable=expandable
            )
        return replace(timeline, source="dry run", live_bytes=live, reserved_bytes=reserved)
