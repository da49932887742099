"""A quick memory check that a search makes before it tries a move.

It counts the permanent bytes of all groups on a device, and the most that one of them needs on top. It
ignores three things: copies from other devices, outputs that wait for consumers, and that in training not
all permanent bytes are live at once. Their sum is taken from the last simulation (`unseen_bytes`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baechi.place.evaluation import Evaluated
from baechi.place.problem import Problem
from baechi.place.search.compiler import Ints, inlined

LARGEST = 8
"""The most groups that move together."""


class Room(NamedTuple):
    """A placement that changes, and the bytes that it leaves free.

    Args:
        device_of: by group.
        kept_bytes, top_bytes: by group, what it keeps, and what it needs on top for a while.
        free_bytes: by device, its memory less the kept bytes of its groups.
        tops_bytes: by device, the most that one of its groups needs on top.
        leave, come: groups that are about to leave a device, and to come there.
    """

    device_of: Ints
    kept_bytes: Ints
    top_bytes: Ints
    free_bytes: Ints
    tops_bytes: Ints
    leave: Ints
    come: Ints

    @classmethod
    def of(cls, problem: Problem, device_of: Sequence[int], unseen: Ints | None = None) -> "Room":
        """The room that a placement leaves."""
        kept = np.array([part.permanent_bytes for part in problem.group_bytes], np.int64)
        top = np.array([part.total_bytes - part.permanent_bytes for part in problem.group_bytes], np.int64)
        free, tops = np.array(problem.memory_bytes, np.int64), np.zeros(len(problem.cluster), np.int64)
        on = np.array(device_of, np.int64)
        if unseen is not None:
            free -= unseen
        np.subtract.at(free, on, kept)
        np.maximum.at(tops, on, top)
        return cls(on, kept, top, free, tops, np.zeros(LARGEST, np.int64), np.zeros(LARGEST, np.int64))


def unseen_bytes(problem: Problem, found: Evaluated) -> Ints:
    """The bytes that the simulator finds on top of the quick check; usually negative in training."""
    room = Room.of(problem, found.device_of)
    seen_bytes = np.array(problem.memory_bytes, np.int64) - room.free_bytes + room.tops_bytes
    return np.array(found.peak_bytes, np.int64) - seen_bytes


@inlined
def takes(room: Room, device: int, come: Ints, coming: int, go: Ints, going: int) -> bool:
    """Whether a change fits on a device. A device that is too full already may still get emptier."""
    more, top, old = 0, 0, room.tops_bytes[device]
    for place in range(coming):
        more += room.kept_bytes[come[place]]
        top = max(top, room.top_bytes[come[place]])
    for place in range(going):
        more -= room.kept_bytes[go[place]]
    return more + max(top, old) <= room.free_bytes[device] or (more <= 0 and top <= old)


@inlined
def move(room: Room, group: int, there: int) -> None:
    """Change a group's device."""
    here, top = room.device_of[group], room.top_bytes[group]
    room.device_of[group] = there
    room.free_bytes[here] += room.kept_bytes[group]
    room.free_bytes[there] -= room.kept_bytes[group]
    room.tops_bytes[there] = max(room.tops_bytes[there], top)
    if top == room.tops_bytes[here]:
        room.tops_bytes[here] = 0
        for other in range(len(room.device_of)):
            if room.device_of[other] == here:
                room.tops_bytes[here] = max(room.tops_bytes[here], room.top_bytes[other])
