"""Torch's caching allocator for CUDA, as it would serve the allocations of an emulated device.

    allocation ──rounded──▶ a free block of its stream and pool, the smallest that is large enough
                                 │ none                          └── split, if the rest is worth keeping
                                 ▼
                            a new segment ──no room──▶ wait for all streams, give back unused segments, again

What is reserved is the sum of segments: more than what is allocated, since blocks are rounded, split, and
kept for their stream. The sizes are those of `c10/cuda/CUDACachingAllocator.cpp` with its default settings,
in which segments do not expand; where they do: `expandable.py`.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

ROUND_BYTES = 512
"""Sizes of blocks are multiples of this."""

SMALL_BYTES = 1 << 20
"""Up to this size, blocks come from the pool of small ones."""

SMALL_SEGMENT_BYTES = 2 << 20
LARGE_SEGMENT_BYTES = 20 << 20
"""Segments for small blocks, and for blocks below `HUGE_BYTES`."""

HUGE_BYTES = 10 << 20
"""From this size on, a block has a segment of its own, rounded up to a multiple of `ROUND_HUGE_BYTES`."""

ROUND_HUGE_BYTES = 2 << 20

Event = tuple[Literal["allocate", "release", "free"], int, int, Hashable]
"""What happens to a block: what, which, its size, its stream. A block that another stream still uses is
released first, and freed when that is over."""


class OutOfMemory(Exception):
    """There is no room.

    Args:
        short_bytes: how many bytes are missing.
    """

    def __init__(self, short_bytes: int) -> None:
        self.short_bytes = short_bytes
        super().__init__(f"{short_bytes} bytes are missing")


@dataclass(slots=True, eq=False)
class _Block:
    """A stretch of a segment.

    Args:
        address: where it begins; lower ones come first among equal sizes.
        size_bytes: how large it is.
        pool: its stream, and whether it is small.
        free: whether nothing is in it.
        before, after: its neighbours in the segment.
    """

    address: int
    size_bytes: int
    pool: tuple[Hashable, bool]
    free: bool = False
    before: "_Block | None" = field(default=None, repr=False)
    after: "_Block | None" = field(default=None, repr=False)


class CachingAllocator:
    """The memory of one device.

    Args:
        limit_bytes: how much there is.

    Attributes:
        reserved_bytes: the sum of all segments.
        peak_bytes: the most that was reserved.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lowest = 2**62
        self._free: dict[tuple[Hashable, bool], list[tuple[int, int, _Block]]] = {}
        self._taken: dict[int, _Block] = {}
        self._released: dict[int, None] = {}
        self.reserved_bytes = 0
        self.peak_bytes = 0

    def allocate(self, key: int, size_bytes: int, stream: Hashable) -> None:
        """Serve an allocation."""
        if not size_bytes:
            return
        size_bytes = _up(size_bytes, ROUND_BYTES)
        pool = stream, size_bytes <= SMALL_BYTES
        block = self._found(pool, size_bytes) or self._segment(pool, size_bytes)
        rest_bytes = block.size_bytes - size_bytes
        if rest_bytes >= ROUND_BYTES if pool[1] else rest_bytes > SMALL_BYTES:
            self._split(block, size_bytes)
        block.free = False
        self._taken[key] = block

    def release(self, key: int) -> None:
        """A block's tensors are gone, but another stream may still use it."""
        if key in self._taken:
            self._released[key] = None

    def free(self, key: int) -> None:
        """A block is back."""
        self._released.pop(key, None)
        block = self._taken.pop(key, None)
        if block is None:
            return
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self._take(neighbour)
                block = self._joined(block, neighbour)
        self._put(block)

    def _found(self, pool: tuple[Hashable, bool], size_bytes: int) -> _Block | None:
        free = self._free.get(pool, [])
        place = bisect_left(free, (size_bytes, -1))
        if place == len(free):
            return None
        block = free[place][2]
        self._take(block)
        return block

    def _segment(self, pool: tuple[Hashable, bool], size_bytes: int) -> _Block:
        needed_bytes = _segment_bytes(size_bytes)
        if self.reserved_bytes + needed_bytes > self._limit_bytes:
            for key in list(self._released):  # it waits for all streams
                self.free(key)
            self._give_back()
        short_bytes = self.reserved_bytes + needed_bytes - self._limit_bytes
        if short_bytes > 0:
            raise OutOfMemory(short_bytes)
        self.reserved_bytes += needed_bytes
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
        return _Block(self._address(needed_bytes), needed_bytes, pool)

    def _address(self, size_bytes: int) -> int:
        """Where the driver puts a new segment: below all others, as CUDA's does more often than not."""
        self._lowest -= size_bytes
        return self._lowest

    def _give_back(self) -> None:
        """Give back all segments in which nothing is."""
        for blocks in self._free.values():
            for _, _, block in list(blocks):
                if block.before is None and block.after is None:
                    self._take(block)
                    self.reserved_bytes -= block.size_bytes

    def _split(self, block: _Block, size_bytes: int) -> None:
        rest = _Block(block.address + size_bytes, block.size_bytes - size_bytes, block.pool)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size_bytes = rest, size_bytes
        self._put(rest)

    def _joined(self, block: _Block, neighbour: _Block) -> _Block:
        first, second = (neighbour, block) if neighbour is block.before else (block, neighbour)
        first.size_bytes += second.size_bytes
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _put(self, block: _Block) -> None:
        block.free = True
        insort(self._free.setdefault(block.pool, []), (block.size_bytes, block.address, block))

    def _take(self, block: _Block) -> None:
        block.free = False
        blocks = self._free[block.pool]
        del blocks[bisect_left(blocks, (block.size_bytes, block.address))]


def _segment_bytes(size_bytes: int) -> int:
    if size_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if size_bytes < HUGE_BYTES else _up(size_bytes, ROUND_HUGE_BYTES)


def _up(size_bytes: int, to_bytes: int) -> int:
    return -(-size_bytes // to_bytes) * to_bytes
