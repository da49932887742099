"""What torch's caching allocator for CUDA would reserve for the allocations of an emulated device."""

import os
from collections.abc import Iterable

from baechi.backend.virtual.machine.caching_allocator import CachingAllocator, Event, OutOfMemory
from baechi.backend.virtual.machine.expandable_allocator import ExpandableAllocator

_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables from which torch takes its allocator's settings; the first one set counts."""


def reserved_bytes(events: Iterable[Event], limit_bytes: int, *, expandable: bool = False) -> int:
    """The most that torch's allocator reserves for some allocations."""
    known = list(events)
    try:
        return _replayed(known, limit_bytes, expandable)
    except OutOfMemory:
        return _replayed(known, 2**61, expandable)


def segments_expand() -> bool:
    """Whether torch's allocator is set to `expandable_segments:True` in the environment of this process."""
    said = next((os.environ[name] for name in _SETTINGS if name in os.environ), "")
    return "expandable_segments:true" in said.replace(" ", "").lower()


def _replayed(events: Iterable[Event], limit_bytes: int, expandable: bool) -> int:
    allocator = ExpandableAllocator(limit_bytes) if expandable else CachingAllocator(limit_bytes)
    for what, key, size_bytes, stream in events:
        if what == "allocate":
            allocator.allocate(key, size_bytes, stream)
        elif what == "release":
            allocator.release(key)
        else:
            allocator.free(key)
    return allocator.peak_bytes
