"""The heap gives out what Python's own gives out."""

from heapq import heappop, heappush

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples

from baechi.place.search.estimating.heap import pop, push

KEYS = st.integers(0, 5).map(float)


@given(st.lists(st.none() | st.tuples(KEYS, st.integers(0, 9)), max_size=60), st.integers(0, 3))
@settings(max_examples=examples(200), deadline=None)
def test_as_heapq(steps: list[tuple[float, int] | None], first: int) -> None:
    """What is put in comes out, the smallest first, behind whatever lies in front of the heap."""
    keys, items = np.full(70, -1.0), np.full(70, -1)
    heap: list[tuple[float, int]] = []
    for step in steps:
        if step is not None:
            push(keys, items, first, len(heap), *step)
            heappush(heap, step)
        elif heap:
            assert pop(keys, items, first, len(heap)) == heappop(heap)
    while heap:
        assert pop(keys, items, first, len(heap)) == heappop(heap)
    assert (items[:first] == -1).all()
