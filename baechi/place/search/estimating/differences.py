"""What a change makes different: from when on, and whether it is too late at a glance.

A forward of a changed placement is that of the accepted one until the first input of a moved layer is made.
After that it can be anything. But a moved layer begins no earlier than what it reads is there, and the
longest way from it to the end is known.
"""

from typing import NamedTuple

import numpy as np

from baechi.place.search.estimating.compiled import Ints, inlined
from baechi.place.search.estimating.course import NEVER, START, Course, before, tail_s
from baechi.place.search.estimating.tables import Tables


class Change(NamedTuple):
    """In what a forward differs from the last one that was accepted.

    Args:
        begin: the kept state to begin with, which does not depend on what has changed.
        from_s: from when on something may differ.
        moved: layers on other devices.
        last: the last of their turns; `START` if there are none. What comes later has its way to the end.
    """

    begin: int
    from_s: float
    moved: Ints
    last: int


def anew(tables: Tables) -> Change:
    """All may have changed.

    Args:
        tables: the problem.
    """
    return Change(START, 0.0, np.empty(0, np.int64), tables.seconds.shape[2])


@inlined
def of_priority(tables: Tables, course: Course, layer: int) -> Change:
    """Another priority: it counts when the layer has all its inputs, not before the last is made.

    Args:
        tables: the problem.
        course: the course.
        layer: whose priority.
    """
    reads, first, from_s = tables.reads, tables.before, 0.0
    for place in range(reads.begin[layer], reads.begin[layer + 1]):
        maker = tables.source[reads.items[place]]
        if maker < 0:  # the device of the highest priority gets an input of the model first
            return Change(START, 0.0, np.empty(0, np.int64), START)
        from_s = max(from_s, course.old_ends_s[maker])
    for place in range(first.begin[layer], first.begin[layer + 1]):
        from_s = max(from_s, course.old_ends_s[first.items[place]])
    return Change(before(course, from_s), from_s, np.empty(0, np.int64), START)


@inlined
def of_devices(tables: Tables, course: Course, moved: Ints, host: bool) -> Change:
    """Layers on other devices: it counts when the first of their inputs is made, and is sent or not.

    Args:
        tables: the problem.
        course: the course.
        moved: the layers.
        host: whether the host takes another time for every layer since.
    """
    from_s, last = 0.0 if host else NEVER, START
    for layer in moved:
        last = max(last, course.turn[layer])
        from_s = min(from_s, _made_s(tables, course, layer))
    return Change(before(course, from_s), from_s, moved, last)


@inlined
def _made_s(tables: Tables, course: Course, layer: int) -> float:
    """When the first is made of what a layer waits for; 0 if that is an input of the model, or nothing."""
    reads, first, found_s = tables.reads, tables.before, NEVER
    for place in range(reads.begin[layer], reads.begin[layer + 1]):
        maker = tables.source[reads.items[place]]
        found_s = min(found_s, course.old_ends_s[maker] if maker >= 0 else 0.0)
    for place in range(first.begin[layer], first.begin[layer + 1]):
        found_s = min(found_s, course.old_ends_s[first.items[place]])
    return 0.0 if found_s == NEVER else found_s


@inlined
def is_late(tables: Tables, course: Course, device_of: Ints, change: Change, limit_s: float) -> bool:
    """Whether a layer that has moved, and what depends on it, cannot end by then."""
    reads, before, source = tables.reads, tables.before, tables.source
    for layer in change.moved:
        device, begin_s = device_of[layer], change.from_s
        for place in range(reads.begin[layer], reads.begin[layer + 1]):
            tensor = reads.items[place]
            maker = source[tensor]
            if maker < 0:
                continue
            there_s = change.from_s
            if course.old_begins_s[maker] < there_s:
                there_s = course.old_ends_s[maker]
            if device_of[maker] != device:
                there_s += tables.travel_s[tables.link[device_of[maker], device], tensor]
            begin_s = max(begin_s, there_s)
        for place in range(before.begin[layer], before.begin[layer + 1]):
            if course.old_begins_s[before.items[place]] < change.from_s:
                begin_s = max(begin_s, course.old_ends_s[before.items[place]])
        if begin_s + tail_s(tables, course, device_of, layer, change.last) > limit_s:
            return True
    return False
