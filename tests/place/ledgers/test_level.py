"""A level remembers how high it stood, and lets the past rise."""

from hypothesis import given
from hypothesis import strategies as st

from baechi.place.ledgers.level import Level

steps = st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 9)), max_size=30)


@given(steps, st.integers(0, 40))
def test_as_a_plain_list(steps: list[tuple[bool, int, int]], asked: int) -> None:
    """It answers as a list of all heights does."""
    level, heights, now = Level(), [0], 0
    for marks, back, size in steps:
        if marks:
            heights.append(now + size)
            level.mark(len(heights) - 1, size)
        else:
            since = max(1, len(heights) - back)
            heights = [height + size * (turn >= since) for turn, height in enumerate(heights)]
            level.raise_since(since, size)
            now += size
    assert level.now_bytes == now
    assert level.highest_bytes == max(heights)
    assert level.highest_since(asked) == max(heights[max(1, asked) :], default=now)


def test_nothing_happened() -> None:
    """An empty device is empty since ever."""
    level = Level()
    assert (level.highest_bytes, level.highest_since(0), level.now_bytes) == (0, 0, 0)
