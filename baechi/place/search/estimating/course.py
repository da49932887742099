"""The course of a forward: its state, and its state at some earlier layers, where another may begin.

    the forward of the placement         kept ──── kept ──── kept ──── kept ──── kept ──── end
    one layer elsewhere: what differs                             ├──────────────────────────
    its forward                                              └───────────────────────────────

Each kept state has two places. A forward writes into those that are free; they count once it is accepted.
"""

from typing import NamedTuple

import numpy as np

from baechi.place.search.estimating.compiled import Floats, Ints, inlined
from baechi.place.search.estimating.tables import Tables

KEPT = 12
"""How many states are kept, each after as many layers more."""

NEVER = float("inf")

START = -1
"""The number of the state at the beginning, which is not kept."""


class Moment(NamedTuple):
    """A state of a forward; of a kept one each array has one dimension more, the first.

    Args:
        missing, ready_s: by layer, for how many tensors and layers it waits; when the last so far was there.
        free_s: by channel.
        when_s, events: a heap: when the inputs of a layer will be there.
        urgent, waits: the layers that wait for a device, a heap for each, in the order of devices.
        waiting: by device, how many wait.
        runs, done_s: by device, the layer that runs, and when it ends; `NEVER` if it is idle.
        through_s: by device, when its last layer so far ended.
        arrivals_s: by device, when a tensor gets there; of no meaning between layers, and not kept.
        counts: how many events are to come; how many layers have started.
        clock_s: now; when the host has issued all that has started; when the last layer so far ended.
    """

    missing: Ints
    ready_s: Floats
    free_s: Floats
    when_s: Floats
    events: Ints
    urgent: Floats
    waits: Ints
    waiting: Ints
    runs: Ints
    done_s: Floats
    through_s: Floats
    arrivals_s: Floats
    counts: Ints
    clock_s: Floats

    @classmethod
    def of(cls, tables: Tables, rows: tuple[int, ...], heaps: int) -> "Moment":
        """Room for states.

        Args:
            tables: the problem.
            rows: the dimension more, if any.
            heaps: how many heaps of all layers the waiting layers need.
        """
        _, devices, layers = tables.seconds.shape
        return cls(
            missing=np.zeros((*rows, layers), np.int64),
            ready_s=np.zeros((*rows, layers)),
            free_s=np.zeros((*rows, tables.channels)),
            when_s=np.zeros((*rows, layers)),
            events=np.zeros((*rows, layers), np.int64),
            urgent=np.zeros((*rows, heaps * layers)),
            waits=np.zeros((*rows, heaps * layers), np.int64),
            waiting=np.zeros((*rows, devices), np.int64),
            runs=np.zeros((*rows, devices), np.int64),
            done_s=np.zeros((*rows, devices)),
            through_s=np.zeros((*rows, devices)),
            arrivals_s=np.zeros((*rows, devices)),
            counts=np.zeros((*rows, 2), np.int64),
            clock_s=np.zeros((*rows, 3)),
        )


class Course(NamedTuple):
    """A forward and what is kept of the last one that was accepted.

    Args:
        now: the state.
        kept: states, two places for each.
        place: by kept state, which of its places counts.
        reached: the last state kept so far.
        begins_s, ends_s: by layer.
        old_begins_s, old_ends_s, turn, tail_s: by layer, of the last forward that was accepted: when it
            begins and ends, its place in the order, the least seconds from its begin to the end of forward.
    """

    now: Moment
    kept: Moment
    place: Ints
    reached: Ints
    begins_s: Floats
    ends_s: Floats
    old_begins_s: Floats
    old_ends_s: Floats
    turn: Ints
    tail_s: Floats

    @classmethod
    def of(cls, tables: Tables) -> "Course":
        """Room for a course, of which nothing is kept yet.

        Args:
            tables: the problem.
        """
        _, devices, layers = tables.seconds.shape
        now, kept = Moment.of(tables, (), devices), Moment.of(tables, (2 * KEPT,), 1)
        kept.clock_s.fill(NEVER)
        times_s = np.zeros((5, layers))
        return cls(
            now,
            kept,
            place=np.zeros(KEPT, np.int64),
            reached=np.array([START]),
            begins_s=times_s[0],
            ends_s=times_s[1],
            old_begins_s=times_s[2],
            old_ends_s=times_s[3],
            turn=np.zeros(layers, np.int64),
            tail_s=times_s[4],
        )


@inlined
def keep(course: Course, number: int) -> None:
    """Keep the present state, until accepted beside the one that counts.

    Args:
        course: the course.
        number: of the state to keep.
    """
    now, kept, row = course.now, course.kept, 2 * number + 1 - course.place[number]
    layers, place = len(now.missing), 0
    for layer in range(layers):
        kept.missing[row, layer] = now.missing[layer]
        kept.ready_s[row, layer] = now.ready_s[layer]
    for channel in range(len(now.free_s)):
        kept.free_s[row, channel] = now.free_s[channel]
    for event in range(now.counts[0]):
        kept.when_s[row, event] = now.when_s[event]
        kept.events[row, event] = now.events[event]
    for device in range(len(now.waiting)):
        kept.waiting[row, device] = now.waiting[device]
        kept.runs[row, device] = now.runs[device]
        kept.done_s[row, device] = now.done_s[device]
        kept.through_s[row, device] = now.through_s[device]
        for wait in range(device * layers, device * layers + now.waiting[device]):
            kept.urgent[row, place] = now.urgent[wait]
            kept.waits[row, place] = now.waits[wait]
            place += 1
    for count in range(2):
        kept.counts[row, count] = now.counts[count]
    for clock in range(3):
        kept.clock_s[row, clock] = now.clock_s[clock]
    course.reached[0] = number


@inlined
def restore(course: Course, number: int) -> None:
    """Make the state that was kept the present one.

    Args:
        course: the course.
        number: of the kept state that counts.
    """
    now, kept, row = course.now, course.kept, 2 * number + course.place[number]
    layers, place = len(now.missing), 0
    for count in range(2):
        now.counts[count] = kept.counts[row, count]
    for clock in range(3):
        now.clock_s[clock] = kept.clock_s[row, clock]
    for layer in range(layers):
        now.missing[layer] = kept.missing[row, layer]
        now.ready_s[layer] = kept.ready_s[row, layer]
    for channel in range(len(now.free_s)):
        now.free_s[channel] = kept.free_s[row, channel]
    for event in range(now.counts[0]):
        now.when_s[event] = kept.when_s[row, event]
        now.events[event] = kept.events[row, event]
    for device in range(len(now.waiting)):
        now.waiting[device] = kept.waiting[row, device]
        now.runs[device] = kept.runs[row, device]
        now.done_s[device] = kept.done_s[row, device]
        now.through_s[device] = kept.through_s[row, device]
        for wait in range(device * layers, device * layers + now.waiting[device]):
            now.urgent[wait] = kept.urgent[row, place]
            now.waits[wait] = kept.waits[row, place]
            place += 1
    course.reached[0] = number


@inlined
def accept(tables: Tables, course: Course, begun: int, device_of: Ints, order: Ints) -> None:
    """Let what the newest forward has kept count from now on.

    Args:
        tables: the problem.
        course: the course.
        begun: the number of the state where that forward began.
        device_of, order: its devices, by layer; its order.
    """
    first = course.kept.counts[2 * begun + course.place[begun], 1] if begun != START else 0
    for turn in range(first, len(order)):
        layer = order[turn]
        course.old_begins_s[layer] = course.begins_s[layer]
        course.old_ends_s[layer] = course.ends_s[layer]
        course.turn[layer] = turn
    for number in range(begun + 1, course.reached[0] + 1):
        course.place[number] = 1 - course.place[number]
    for number in range(course.reached[0] + 1, KEPT):  # fewer layers than that, or many at one time
        course.kept.clock_s[2 * number + course.place[number], 0] = NEVER
    for turn in range(len(order) - 1, -1, -1):
        layer = order[turn]
        course.tail_s[layer] = tail_s(tables, course, device_of, layer, START)


@inlined
def tail_s(tables: Tables, course: Course, device_of: Ints, layer: int, last: int) -> float:
    """The least seconds from a layer's begin to the end of forward.

    Args:
        tables: the problem.
        course: the course.
        device_of: by layer.
        layer: the layer.
        last: the last turn of those whose devices have changed; what comes before it may run differently.
    """
    device, makes, readers, after = device_of[layer], tables.makes, tables.readers, tables.after
    longest_s = 0.0
    for place in range(makes.begin[layer], makes.begin[layer + 1]):
        tensor = makes.items[place]
        for reading in range(readers.begin[tensor], readers.begin[tensor + 1]):
            reader = readers.items[reading]
            left_s = course.tail_s[reader] if course.turn[reader] > last else tables.to_end_s[0, reader]
            if device_of[reader] != device:
                left_s += tables.travel_s[tables.link[device, device_of[reader]], tensor]
            longest_s = max(longest_s, left_s)
    for place in range(after.begin[layer], after.begin[layer + 1]):
        reader = after.items[place]
        left_s = course.tail_s[reader] if course.turn[reader] > last else tables.to_end_s[0, reader]
        longest_s = max(longest_s, left_s)
    return float(tables.seconds[0, device, layer]) + longest_s


@inlined
def before(course: Course, time_s: float) -> int:
    """The last kept state before a time.

    Args:
        course: the course.
        time_s: the time.

    Returns:
        Its number, `START` if none is.
    """
    number = KEPT - 1
    while number != START and course.kept.clock_s[2 * number + course.place[number], 0] >= time_s:
        number -= 1
    return number
