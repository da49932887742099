"""Torch's caching allocator: rounding, pools, splitting, merging, streams, and what it does when full.

Each rule has a test that fails without it. The sizes are those of torch's source.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baechi.backend.virtual.machine.caching_allocator import CachingAllocator, Event, OutOfMemory
from baechi.backend.virtual.machine.replay import reserved_bytes

MIB = 1 << 20
ROOMY = 1 << 40


def allocator(limit_bytes: int = ROOMY) -> CachingAllocator:
    return CachingAllocator(limit_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "reserved"),
    [(0, 0), (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB),
     (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB), (100 * MIB + 1, 102 * MIB)],
)  # fmt: skip
def test_segments(size_bytes: int, reserved: int) -> None:
    """By size: 2 MiB for small ones, 20 MiB up to 10 MiB, else a multiple of 2 MiB."""
    made = allocator()
    made.allocate(0, size_bytes, "s")
    assert made.reserved_bytes == reserved


def test_blocks_are_rounded() -> None:
    """To 512 bytes: 4,096 blocks of one byte fill a segment of 2 MiB, and one more needs another."""
    made = allocator()
    for key in range(4096):
        made.allocate(key, 1, "s")
    assert made.reserved_bytes == 2 * MIB
    made.allocate(4096, 1, "s")
    assert made.reserved_bytes == 4 * MIB


def test_large_blocks_are_split_only_if_much_is_left() -> None:
    """More than 1 MiB: of a segment of 20 MiB, 9 MiB leave 11, which serve 9 more, and then 2."""
    made = allocator()
    for key in (0, 1):
        made.allocate(key, 9 * MIB, "s")
    assert made.reserved_bytes == 20 * MIB
    made.allocate(2, MIB + 512, "s")  # the last 2 MiB are whole: less than 1 MiB would be left
    assert made.reserved_bytes == 20 * MIB
    made.allocate(3, MIB + 512, "s")
    assert made.reserved_bytes == 40 * MIB


@pytest.mark.parametrize("left_bytes", [512, MIB // 2, MIB])
def test_what_is_left_of_a_large_block_goes_with_it(left_bytes: int) -> None:
    """Up to 1 MiB: the neighbour behind it does not get it when that is free."""
    made = allocator()
    made.allocate(0, 6 * MIB + left_bytes, "s")
    made.allocate(1, 5 * MIB, "s")
    made.free(0)
    made.allocate(2, 6 * MIB, "s")  # where the first one was
    made.free(1)
    made.allocate(3, 14 * MIB - left_bytes // 2, "s")  # 14 MiB less what is left are free behind it
    assert made.reserved_bytes == 34 * MIB


def test_small_is_up_to_one_mebibyte() -> None:
    """Such a block shares its segment with smaller ones."""
    made = allocator()
    made.allocate(0, MIB, "s")
    made.allocate(1, 1, "s")
    assert made.reserved_bytes == 2 * MIB


def test_small_and_large_ones_do_not_mix() -> None:
    """A free large block serves no small one."""
    made = allocator()
    made.allocate(0, 5 * MIB, "s")
    made.free(0)
    made.allocate(1, 100, "s")
    assert made.reserved_bytes == 22 * MIB


def test_the_smallest_that_is_large_enough() -> None:
    """Of two free blocks the smaller one is taken, so that the larger one serves what comes then."""
    made = allocator()
    for key, size in enumerate((30 * MIB, 12 * MIB)):
        made.allocate(key, size, "s")
    made.free(0)
    made.free(1)
    made.allocate(2, 11 * MIB, "s")
    made.allocate(3, 29 * MIB, "s")
    assert made.reserved_bytes == 42 * MIB


def test_neighbours_merge() -> None:
    """Two halves that are free serve a whole again."""
    made = allocator()
    for key in (0, 1):
        made.allocate(key, 9 * MIB, "s")
    for key in (0, 1):
        made.free(key)
    made.allocate(2, 18 * MIB, "s")
    assert made.reserved_bytes == 20 * MIB


def test_blocks_belong_to_their_stream() -> None:
    """What is free on one stream serves no other one."""
    made = allocator()
    made.allocate(0, 4 * MIB, "s")
    made.free(0)
    made.allocate(1, 4 * MIB, "t")
    assert made.reserved_bytes == 40 * MIB


def test_when_it_is_full_it_gives_back_what_is_unused() -> None:
    """Segments in which nothing is; those of other streams and pools, too."""
    made = allocator(40 * MIB)
    made.allocate(0, 20 * MIB, "s")
    made.allocate(1, 20 * MIB, "t")
    made.free(0)
    made.allocate(2, 4 * MIB, "t")
    assert made.reserved_bytes == 40 * MIB
    with pytest.raises(OutOfMemory) as caught:
        made.allocate(3, 30 * MIB, "t")
    assert caught.value.short_bytes == 30 * MIB


def test_a_segment_in_use_stays() -> None:
    """Also if only a part of it is in use."""
    made = allocator(20 * MIB)
    made.allocate(0, 2 * MIB, "s")
    with pytest.raises(OutOfMemory):
        made.allocate(1, 2 * MIB, "t")


def test_when_it_is_full_it_waits_for_other_streams() -> None:
    """A block that another stream used is back then; before, it is not."""
    made = allocator(40 * MIB)
    made.allocate(0, 20 * MIB, "s")
    made.release(0)
    made.allocate(1, 20 * MIB, "s")
    assert made.reserved_bytes == 40 * MIB
    made.allocate(2, 20 * MIB, "s")
    assert made.reserved_bytes == 40 * MIB
    made.free(0)  # it is back already


def test_reserved_bytes() -> None:
    """At most the limit where all finds room; else what it would take."""
    events: list[Event] = [
        ("allocate", 0, 20 * MIB, "s"), ("free", 0, 0, "s"), ("allocate", 1, 22 * MIB, "s"),
    ]  # fmt: skip
    assert reserved_bytes(events, ROOMY) == 42 * MIB
    assert reserved_bytes(events, 41 * MIB) == 22 * MIB
    assert reserved_bytes(events, 21 * MIB) == 42 * MIB


@given(st.integers(0, 10**9), st.sampled_from([10**3, 10**6, 3 * 10**7]))
@settings(max_examples=60, deadline=None)
def test_books_balance(seed: int, most: int) -> None:
    """Nothing overlaps: what is reserved is what is taken and free; all free, it is given back whole."""
    chance, made = Random(seed), allocator()
    held: dict[int, int] = {}
    for key in range(200):
        if held and chance.random() < 0.45:
            made.free(gone := chance.choice(list(held)))
            del held[gone]
        else:
            held[key] = chance.randrange(1, most)
            made.allocate(key, held[key], chance.randrange(2))
        free = sum([size for blocks in made._free.values() for size, _, _ in blocks])
        taken = sum([block.size_bytes for block in made._taken.values()])
        assert free + taken == made.reserved_bytes and taken >= sum(held.values())
    for key in held:
        made.free(key)
    made._give_back()
    assert made.reserved_bytes == 0
