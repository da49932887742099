"""Forward by priority: a device that gets free runs the ready layer with the highest priority.

The result is an order of the layers together with its time.
"""

import numpy as np

from baechi.place.search.estimating.compiled import Floats, Ints, inlined
from baechi.place.search.estimating.course import KEPT, NEVER, START, Course, Moment, keep, restore
from baechi.place.search.estimating.differences import Change, is_late
from baechi.place.search.estimating.heap import pop, push
from baechi.place.search.estimating.tables import Tables, calls_s, work_s


@inlined
def dispatch(
    tables: Tables,
    course: Course,
    device_of: Ints,
    priority: Floats,
    limit_s: float,
    order: Ints,
    change: Change,
) -> tuple[float, int]:
    """Run a forward.

    Args:
        tables: the problem.
        course: room for it, and the states kept of the last one that was accepted.
        device_of: by layer, its device.
        priority: by layer; the highest runs first.
        limit_s: give up when forward cannot end by then.
        order: is filled with the layers in the order of their starts. It begins with those of the accepted
            forward, all of them, if this one begins in its middle.
        change: what has changed since the last one that was accepted.

    Returns:
        When it ends, `NEVER` if it was given up; and how many layers have started.
    """
    now = course.now
    if is_late(tables, course, device_of, change, limit_s):
        return NEVER, 0
    if change.begin == START:
        _begin(tables, now, device_of, priority)
        course.reached[0] = START
        left_s = work_s(tables.seconds[0], device_of)
    else:
        restore(course, change.begin)
        left_s = _left_s(tables.seconds[0], device_of, order, now.counts[1])
        for device_s in left_s:
            if now.clock_s[0] + device_s > limit_s:
                return NEVER, now.counts[1]
    end_s = _run(tables, course, device_of, priority, limit_s, order, left_s, change.last)
    return end_s, now.counts[1]


@inlined
def _run(
    tables: Tables,
    course: Course,
    device_of: Ints,
    priority: Floats,
    limit_s: float,
    order: Ints,
    left_s: Floats,
    last: int,
) -> float:
    """Go on to the end. Returns when it ends, `NEVER` if it was given up."""
    now, ends_s, layers, devices, stride = (
        course.now,
        course.ends_s,
        len(device_of),
        len(left_s),
        tables.stride,
    )
    seconds, host_s, last_part, send_s = (
        tables.seconds[0],
        tables.host_s[0],
        tables.last_part[0],
        tables.send_s[0],
    )
    to_end_s, launch_s, call_s = tables.to_end_s[0], tables.launch_s[0], calls_s(tables, device_of)
    makes, makes_begin = tables.makes.items, tables.makes.begin
    readers, readers_begin = tables.readers.items, tables.readers.begin
    after, after_begin = tables.after.items, tables.after.begin
    link, travel_s = tables.link, tables.travel_s
    free_s, when_s, events = now.free_s, now.when_s, now.events
    urgent, waits, waiting, through_s = now.urgent, now.waits, now.waiting, now.through_s
    arrivals_s, done_s, runs = now.arrivals_s, now.done_s, now.runs
    begins_s, tail_s, turn = course.begins_s, course.tail_s, course.turn
    coming, started = now.counts
    now_s, issued_s, end_s = now.clock_s
    number = course.reached[0] + 1
    mark = layers * (number + 1) // (KEPT + 1) if number < KEPT else layers + 1
    while True:
        now_s = when_s[0] if coming else NEVER
        for device in range(devices):
            now_s = min(now_s, done_s[device])
        if now_s == NEVER:
            break
        # all that happens at this time, before devices choose
        while coming and when_s[0] <= now_s:
            layer = pop(when_s, events, 0, coming)[1]
            coming -= 1
            device = device_of[layer]
            push(urgent, waits, device * layers, waiting[device], -priority[layer], layer)
            waiting[device] += 1
        while True:
            layer = layers
            for device in range(devices):
                if done_s[device] <= now_s:
                    layer = min(layer, runs[device])
            if layer == layers:
                break
            end_s, device = now_s, device_of[layer]
            done_s[device] = NEVER
            through_s[device] = now_s
            for place in range(makes_begin[layer], makes_begin[layer + 1]):
                tensor = makes[place]
                for there in range(devices):
                    arrivals_s[there] = -1.0
                arrivals_s[device] = now_s
                for reading in range(readers_begin[tensor], readers_begin[tensor + 1]):
                    reader = readers[reading]
                    there = device_of[reader]
                    if arrivals_s[there] < 0:
                        channel = stride * device + there
                        start_s = max(free_s[channel], now_s)
                        free_s[channel] = start_s + travel_s[link[device, there], tensor]
                        arrivals_s[there] = free_s[channel]
                        issued_s += send_s[tensor]
                    coming = _receive(now, reader, there, priority, arrivals_s[there], now_s, coming)
            for place in range(after_begin[layer], after_begin[layer + 1]):
                coming = _receive(now, after[place], device_of[after[place]], priority, now_s, now_s, coming)
        for device in range(devices):
            if done_s[device] != NEVER:
                continue
            if now_s + left_s[device] > limit_s:
                now.counts[1] = started
                return NEVER
            if not waiting[device]:
                continue
            layer = pop(urgent, waits, device * layers, waiting[device])[1]
            waiting[device] -= 1
            if now_s + (tail_s[layer] if turn[layer] > last else to_end_s[layer]) > limit_s:
                now.counts[1] = started
                return NEVER
            order[started] = layer
            started += 1
            begins_s[layer] = now_s
            ends_s[layer] = now_s + seconds[device, layer]
            left_s[device] -= seconds[device, layer]
            if launch_s:
                issued_s += call_s[layer]
                begin_s = max(now_s, issued_s + min(launch_s, host_s[layer]))
                issued_s += host_s[layer]
                last_s = issued_s + seconds[device, layer] * last_part[layer]
                ends_s[layer] = max(begin_s + seconds[device, layer], last_s)
            done_s[device], runs[device] = ends_s[layer], layer
        if started >= mark:
            now.counts[0], now.counts[1] = coming, started
            now.clock_s[0], now.clock_s[1], now.clock_s[2] = now_s, issued_s, end_s
            keep(course, number)
            number += 1
            mark = layers * (number + 1) // (KEPT + 1) if number < KEPT else layers + 1
    now.counts[1] = started
    return float(max(end_s, downloaded_s(tables, device_of, through_s, issued_s)))


@inlined
def _receive(
    now: Moment, layer: int, device: int, priority: Floats, there_s: float, now_s: float, coming: int
) -> int:
    """A layer is told when one of those is there that it waits for. Returns how many events are to come."""
    now.ready_s[layer] = max(now.ready_s[layer], there_s)
    now.missing[layer] -= 1
    if now.missing[layer]:
        return coming
    if now.ready_s[layer] > now_s:
        push(now.when_s, now.events, 0, coming, now.ready_s[layer], layer)
        return coming + 1
    first = device * len(now.missing)
    push(now.urgent, now.waits, first, now.waiting[device], -priority[layer], layer)
    now.waiting[device] += 1
    return coming


@inlined
def _begin(tables: Tables, now: Moment, device_of: Ints, priority: Floats) -> None:
    """The state at the beginning: nothing has run, the model's inputs travel."""
    layers, coming = len(device_of), 0
    for layer in range(layers):
        now.missing[layer] = tables.missing[layer]
        now.ready_s[layer] = 0.0
    now.free_s.fill(0.0)
    now.waiting.fill(0)
    now.done_s.fill(NEVER)
    now.through_s.fill(0.0)
    upload(tables, device_of, priority, now.free_s, now.ready_s)
    for layer in range(layers):
        if not now.missing[layer]:
            push(now.when_s, now.events, 0, coming, now.ready_s[layer], layer)
            coming += 1
    now.counts[0], now.counts[1] = coming, 0
    now.clock_s[0], now.clock_s[1], now.clock_s[2] = 0.0, -tables.launch_s[0], 0.0


@inlined
def _left_s(seconds: Floats, device_of: Ints, order: Ints, started: int) -> Floats:
    """By device, the work that has not started."""
    found = np.zeros(seconds.shape[0])
    for place in range(started, len(order)):
        layer = order[place]
        found[device_of[layer]] += seconds[device_of[layer], layer]
    return found


@inlined
def downloaded_s(tables: Tables, device_of: Ints, through_s: Floats, now_s: float) -> float:
    """When the host has fetched outputs, one after the other."""
    for number in range(len(tables.fetched)):
        device = device_of[tables.fetched[number]]
        now_s = max(now_s + tables.fetch_s[number], through_s[device]) + tables.down_s[number, device]
    return now_s


@inlined
def upload(tables: Tables, device_of: Ints, priority: Floats, free_s: Floats, ready_s: Floats) -> None:
    """Set when the model's inputs arrive: the device of the consumer with the highest priority is first."""
    devices, readers = tables.seconds.shape[1], tables.readers
    for tensor in tables.uploads:
        begin, end = readers.begin[tensor], readers.begin[tensor + 1]
        urgency, sent = np.empty(devices), np.ones(devices, np.bool_)
        for place in range(begin, end):
            reader = readers.items[place]
            device = device_of[reader]
            if sent[device] or priority[reader] > urgency[device]:
                urgency[device] = priority[reader]
                sent[device] = False
        while not sent.all():
            there = -1
            for device in range(devices):
                if not sent[device] and (there < 0 or urgency[device] > urgency[there]):
                    there = device
            sent[there] = True
            channel = tables.stride * devices + there
            free_s[channel] += tables.travel_s[tables.link[devices, there], tensor]
            for place in range(begin, end):
                reader = readers.items[place]
                if device_of[reader] == there:
                    ready_s[reader] = max(ready_s[reader], free_s[channel])
