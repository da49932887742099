"""Torch's caching allocator for CUDA with `expandable_segments:True`.

Each stream has one segment for small blocks and one for large ones. A segment is a long stretch of addresses,
of which only some pages have memory:

    pages     |====|====|----|====|----|----| ...      = has memory, - has none
    blocks    [used][free]  ..[used]  ..

A request takes the best free block. If there is none, the first long enough row of free blocks and pages
without memory gets memory for what is missing. Under pressure all pages without blocks lose theirs.
The sizes and the order of the search are those of `c10/cuda/CUDACachingAllocator.cpp`.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import final

from baechi.backend.virtual.machine.caching_allocator import (
    LARGE_SEGMENT_BYTES,
    ROUND_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    OutOfMemory,
)


@dataclass(slots=True, eq=False)
class _Stretch:
    """Consecutive addresses of a segment that are all used, all free, or all without memory.

    Args:
        begin: the first address.
        end: the address after the last.
        used: whether a block is in it.
        mapped: whether it has memory.
    """

    begin: int
    end: int
    used: bool = False
    mapped: bool = True

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


@dataclass(slots=True, eq=False)
class _Segment:
    """The addresses of one stream and kind of blocks.

    Args:
        page_bytes: memory comes in multiples of this.
        stretches: by address; the last one has no memory and no end that matters.
        free: size and first address of those with memory and no block, the smallest first.
    """

    page_bytes: int
    stretches: list[_Stretch] = field(default_factory=lambda: [_Stretch(0, 2**62, mapped=False)])
    free: list[tuple[int, int]] = field(default_factory=list)

    def best_free(self, size_bytes: int) -> int | None:
        """The first address of the smallest free stretch that is large enough.

        What could grow, since no memory follows it, counts as large as it could get. The search goes up by
        size and stops where the next one counts for more.
        """
        found = None
        for _, begin in self.free[bisect_left(self.free, (size_bytes, -1)) :]:
            counted_bytes = self._could_be_bytes(begin)
            if found is not None and counted_bytes >= found[0]:
                break
            found = counted_bytes, begin
        return None if found is None else found[1]

    def _could_be_bytes(self, begin: int) -> int:
        place = self._place(begin)
        stretch, after = self.stretches[place : place + 2]
        return stretch.size_bytes + (0 if after.mapped else after.size_bytes)

    def to_map(self, size_bytes: int) -> list[tuple[int, int]]:
        """Which addresses need memory so that a block finds room: begin and end, whole pages."""
        for place, stretch in enumerate(self.stretches):
            if stretch.mapped:
                continue
            first = place - (place > 0 and not self.stretches[place - 1].used)
            needed, left_bytes = [], size_bytes
            for part in self.stretches[first:]:
                if part.used or left_bytes <= 0:
                    break
                taken_bytes = min(part.size_bytes, left_bytes)
                if not part.mapped:
                    needed.append((part.begin, min(part.end, self._up(part.begin + taken_bytes))))
                    taken_bytes = needed[-1][1] - part.begin
                left_bytes -= taken_bytes
            if left_bytes <= 0:
                return needed
        raise AssertionError("the last stretch has room for everything")

    def change(self, begin: int, end: int, *, used: bool = False, mapped: bool = True) -> None:
        """Let some addresses be used, free or without memory; equal neighbours become one stretch."""
        first, last = max(0, self._place(begin) - 1), self._place(end - 1) + 2
        parts = [_Stretch(begin, end, used, mapped)]
        for old in self.stretches[first:last]:
            if old.mapped and not old.used:
                del self.free[bisect_left(self.free, (old.size_bytes, old.begin))]
            for lower, upper in ((old.begin, min(old.end, begin)), (max(old.begin, end), old.end)):
                if lower < upper:
                    parts.append(_Stretch(lower, upper, old.used, old.mapped))
        joined: list[_Stretch] = []
        for part in sorted(parts, key=lambda part: part.begin):
            before = joined[-1] if joined else None
            if before is not None and not (before.used or part.used) and before.mapped == part.mapped:
                before.end = part.end
            else:
                joined.append(part)
        self.stretches[first:last] = joined
        for part in joined:
            if part.mapped and not part.used:
                insort(self.free, (part.size_bytes, part.begin))

    def unused_pages(self) -> list[tuple[int, int]]:
        """Whole pages that have memory and no block: begin and end of each row of them."""
        rows = [(self._up(s.begin), self._down(s.end)) for s in self.stretches if s.mapped and not s.used]
        return [(begin, end) for begin, end in rows if begin < end]

    def _place(self, address: int) -> int:
        return bisect_right(self.stretches, address, key=lambda stretch: stretch.begin) - 1

    def _down(self, address: int) -> int:
        return address // self.page_bytes * self.page_bytes

    def _up(self, address: int) -> int:
        return -(-address // self.page_bytes) * self.page_bytes


@final
class ExpandableAllocator:
    """The memory of one device; as `CachingAllocator`, with segments that expand.

    Args:
        limit_bytes: how much there is.

    Attributes:
        reserved_bytes: all pages that have memory.
        peak_bytes: the most that was reserved.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._segments: dict[tuple[Hashable, bool], _Segment] = {}
        self._taken: dict[int, tuple[_Segment, int, int]] = {}
        self._released: dict[int, None] = {}
        self.reserved_bytes = 0
        self.peak_bytes = 0

    def allocate(self, key: int, size_bytes: int, stream: Hashable) -> None:
        """Serve an allocation; see `CachingAllocator.allocate`."""
        if not size_bytes:
            return
        size_bytes = -(-size_bytes // ROUND_BYTES) * ROUND_BYTES
        small = size_bytes <= SMALL_BYTES
        pages = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        segment = self._segments.setdefault((stream, small), _Segment(pages))
        if segment.best_free(size_bytes) is None:
            self._map(segment, size_bytes)
        begin = segment.best_free(size_bytes)
        assert begin is not None
        end = begin + size_bytes
        segment.change(begin, end, used=True)
        self._taken[key] = segment, begin, end

    def release(self, key: int) -> None:
        """A block's tensors are gone, but another stream may still use it; see `CachingAllocator.release`."""
        if key in self._taken:
            self._released[key] = None

    def free(self, key: int) -> None:
        """A block is back; see `CachingAllocator.free`."""
        self._released.pop(key, None)
        taken = self._taken.pop(key, None)
        if taken is not None:
            segment, begin, end = taken
            segment.change(begin, end)

    def _map(self, segment: _Segment, size_bytes: int) -> None:
        """Give pages memory, so that a block finds room."""
        if self._needed_bytes(segment, size_bytes) > self._limit_bytes - self.reserved_bytes:
            for key in list(self._released):  # it waits for all streams
                self.free(key)
            for other in self._segments.values():
                for begin, end in other.unused_pages():
                    other.change(begin, end, mapped=False)
                    self.reserved_bytes -= end - begin
        missing = segment.to_map(size_bytes)
        short_bytes = self.reserved_bytes + self._needed_bytes(segment, size_bytes) - self._limit_bytes
        if short_bytes > 0:
            raise OutOfMemory(short_bytes)
        for begin, end in missing:
            segment.change(begin, end)
        self.reserved_bytes += _bytes(missing)
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)

    def _needed_bytes(self, segment: _Segment, size_bytes: int) -> int:
        """How much memory there must be for a block."""
        return _bytes(segment.to_map(size_bytes))


def _bytes(rows: list[tuple[int, int]]) -> int:
    return sum([end - begin for begin, end in rows])
