"""A heap in two arrays, for compiled functions: the smallest key first, then the smallest item.

Several heaps may share the arrays, each from its own first place on.
"""

from baechi.place.search.estimating.compiled import Floats, Ints, inlined


@inlined
def push(keys: Floats, items: Ints, first: int, size: int, key: float, item: int) -> None:
    """Put an item in.

    Args:
        keys, items: the heap's arrays.
        first: the heap's first place in them.
        size: how many items it holds so far.
        key, item: what comes.
    """
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        above = first + parent
        if keys[above] < key or (keys[above] == key and items[above] < item):
            break
        keys[first + place], items[first + place] = keys[above], items[above]
        place = parent
    keys[first + place], items[first + place] = key, item


@inlined
def pop(keys: Floats, items: Ints, first: int, size: int) -> tuple[float, int]:
    """Take the smallest item out.

    Args:
        keys, items: the heap's arrays.
        first: the heap's first place in them.
        size: how many items it holds so far, at least one.

    Returns:
        Its key and itself.
    """
    top_key, top = keys[first], items[first]
    key, item = keys[first + size - 1], items[first + size - 1]
    place, child, end = 0, 1, size - 1
    while child < end:
        here = first + child
        if child + 1 < end and (
            keys[here + 1] < keys[here] or (keys[here + 1] == keys[here] and items[here + 1] < items[here])
        ):
            child, here = child + 1, here + 1
        if key < keys[here] or (key == keys[here] and item < items[here]):
            break
        keys[first + place], items[first + place] = keys[here], items[here]
        place, child = child, 2 * child + 1
    keys[first + place], items[first + place] = key, item
    return top_key, top
