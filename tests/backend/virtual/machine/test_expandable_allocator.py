"""Torch's allocator with expandable segments: pages, growing, splitting, and what it does when full."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baechi.backend.virtual.machine.caching_allocator import OutOfMemory
from baechi.backend.virtual.machine.expandable_allocator import ExpandableAllocator
from baechi.backend.virtual.machine.replay import reserved_bytes, segments_expand

MIB = 1 << 20


def allocator(limit_bytes: int = 1 << 40) -> ExpandableAllocator:
    return ExpandableAllocator(limit_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "reserved"),
    [(0, 0), (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (20 * MIB, 20 * MIB), (21 * MIB, 40 * MIB)],
)
def test_pages(size_bytes: int, reserved: int) -> None:
    """Memory comes in pages of 2 MiB for small blocks, and of 20 MiB for large ones."""
    made = allocator()
    made.allocate(0, size_bytes, "s")
    assert made.reserved_bytes == reserved


def test_blocks_lie_side_by_side() -> None:
    """Large blocks share pages, whatever is left: 8 of 15 MiB take 120 MiB, in segments of their own 128."""
    made = allocator()
    for key in range(8):
        made.allocate(key, 15 * MIB, "s")
    assert made.reserved_bytes == 120 * MIB


def test_blocks_are_rounded() -> None:
    """To 512 bytes: 4,096 blocks of one byte fill a page of 2 MiB, and one more needs another."""
    made = allocator()
    for key in range(4097):
        made.allocate(key, 1, "s")
    assert made.reserved_bytes == 4 * MIB


def test_what_can_grow_is_taken_last() -> None:
    """6 MiB go where 9 are free between blocks, not into the 6 at the end; so 9 more need memory."""
    made = allocator()
    made.allocate(0, 9 * MIB, "s")
    made.allocate(1, 5 * MIB, "s")
    made.free(0)
    made.allocate(2, 6 * MIB, "s")
    made.allocate(3, 9 * MIB, "s")
    assert made.reserved_bytes == 40 * MIB


def test_a_free_block_grows() -> None:
    """A block that fits in no free one takes the free one at the end, and memory for the rest."""
    made = allocator()
    made.allocate(0, 30 * MIB, "s")
    made.free(0)
    made.allocate(1, 50 * MIB, "s")
    assert made.reserved_bytes == 60 * MIB


def test_what_cannot_grow_goes_first() -> None:
    """A small request leaves the free block at the end alone, which may grow."""
    made = allocator()
    for key, size in enumerate((10, 30, 20)):
        made.allocate(key, size * MIB, "s")
    made.free(0)
    made.free(2)
    made.allocate(3, 5 * MIB, "s")  # of the 10 MiB before the second
    made.allocate(4, 40 * MIB, "s")  # the 20 MiB at the end, and one page
    assert made.reserved_bytes == 80 * MIB


def test_streams_and_kinds_have_their_own() -> None:
    """A free block serves its stream only, and small requests take no large block."""
    made = allocator()
    made.allocate(0, 5 * MIB, "s")
    made.free(0)
    made.allocate(1, 5 * MIB, "t")
    assert made.reserved_bytes == 40 * MIB
    made.allocate(2, 100, "s")
    assert made.reserved_bytes == 42 * MIB


def test_when_full_unused_pages_go_back() -> None:
    """Whole pages without blocks, also within a segment; what was released is waited for."""
    made = allocator(100 * MIB)
    for key in range(3):
        made.allocate(key, 30 * MIB, "s")
    made.free(1)  # from 30 to 60 MiB: one whole page
    made.allocate(3, 20 * MIB, "t")
    assert made.reserved_bytes == 100 * MIB
    made.release(3)
    made.allocate(4, 20 * MIB, "u")
    assert (made.reserved_bytes, made.peak_bytes) == (100 * MIB, 100 * MIB)
    with pytest.raises(OutOfMemory):
        made.allocate(5, 60 * MIB, "u")


def test_pages_taken_back_come_again() -> None:
    """Addresses that lost their memory get it again, with the free ones beside them."""
    made = allocator(120 * MIB)
    for key in range(3):
        made.allocate(key, 40 * MIB, "s")
    made.free(1)
    made.allocate(3, 20 * MIB, "t")
    made.free(3)
    made.allocate(4, 35 * MIB, "s")
    assert made.reserved_bytes == 120 * MIB


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_never_less_than_what_is_alive(seed: int) -> None:
    """Random requests: what is reserved covers what is alive, and is no more than without sharing pages."""
    chance, made, alive, events = Random(seed), allocator(), dict[int, int](), []
    for key in range(120):
        size = chance.choice([100, MIB, 3 * MIB, 11 * MIB, 64 * MIB]) + chance.randrange(5000)
        events.append(("allocate", key, size, chance.choice("st")))
        made.allocate(key, size, events[-1][3])
        alive[key] = size
        if alive and chance.random() < 0.5:
            gone = chance.choice(list(alive))
            del alive[gone]
            events.append(("free", gone, 0, None))
            made.free(gone)
        assert made.reserved_bytes >= sum(alive.values())
    assert reserved_bytes(events, 1 << 40, expandable=True) == made.peak_bytes


@pytest.mark.parametrize(
    ("settings_", "expand"),
    [
        ({}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments: True"}, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, False),
    ],
)
def test_the_setting(monkeypatch: pytest.MonkeyPatch, settings_: dict[str, str], expand: bool) -> None:
    """Read from the environment, as torch reads it."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings_.items():
        monkeypatch.setenv(name, value)
    assert segments_expand() == expand
