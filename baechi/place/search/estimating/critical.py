"""The critical chain of a forward: from its end back, what each layer waited for.

A layer waits for its device, or for the last of its inputs. Only what changes the chain makes the step
shorter. So half of all changes begin at one of its layers; the others keep the search from standing still.
"""

from typing import NamedTuple

import numpy as np

from baechi.place.search.estimating.compiled import Ints, inlined
from baechi.place.search.estimating.course import Course
from baechi.place.search.estimating.tables import Tables

_NONE = -1


class Critical(NamedTuple):
    """Room for a chain.

    Args:
        chain: its layers, the last one first.
        earlier: by layer, the one that its device ran before; `_NONE` for the first.
        latest: by device, the last layer so far.
    """

    chain: Ints
    earlier: Ints
    latest: Ints

    @classmethod
    def of(cls, tables: Tables) -> "Critical":
        """Room for a chain of a problem.

        Args:
            tables: the problem.
        """
        _, devices, layers = tables.seconds.shape
        return cls(np.zeros(layers, np.int64), np.zeros(layers, np.int64), np.zeros(devices, np.int64))


@inlined
def follow(tables: Tables, course: Course, device_of: Ints, order: Ints, critical: Critical) -> int:
    """Find the critical chain of the forward that was accepted last.

    Args:
        tables: the problem.
        course: its course.
        device_of, order: its devices, by layer; its order.
        critical: is filled.

    Returns:
        How many layers the chain has.
    """
    critical.latest.fill(_NONE)
    last, length = order[0], 0
    for layer in order:
        device = device_of[layer]
        critical.earlier[layer] = critical.latest[device]
        critical.latest[device] = layer
        if course.old_ends_s[layer] > course.old_ends_s[last]:
            last = layer
    while last != _NONE:
        critical.chain[length] = last
        length += 1
        earlier = critical.earlier[last]
        if earlier == _NONE or course.old_ends_s[earlier] < course.old_begins_s[last]:
            earlier = _last_maker(tables, course, device_of, last)
        last = earlier
    return length


@inlined
def _last_maker(tables: Tables, course: Course, device_of: Ints, layer: int) -> int:
    """The layer whose output reaches another one last, without queues on links; `_NONE` if it reads none."""
    found, latest_s = _NONE, -1.0
    for place in range(tables.reads.begin[layer], tables.reads.begin[layer + 1]):
        tensor = tables.reads.items[place]
        maker = tables.source[tensor]
        if maker < 0:
            continue
        there_s = course.old_ends_s[maker]
        if device_of[maker] != device_of[layer]:
            there_s += tables.travel_s[tables.link[device_of[maker], device_of[layer]], tensor]
        if there_s > latest_s:
            found, latest_s = maker, there_s
    return found
