"""Forward by priority: a device that gets free runs the ready layer with the highest priority.

The result is an order of the layers together with its time.
"""

import numpy as np

from baechi.place.search.compiled import Floats, Ints, compiled
from baechi.place.search.heap import pop, push
from baechi.place.search.tables import Tables, begins, calls_s, work_s

NEVER = float("inf")


@compiled
def dispatch(
    tables: Tables, device_of: Ints, priority: Floats, limit_s: float, order: Ints
) -> tuple[float, int]:
    """Run a forward.

    Args:
        tables: the problem.
        device_of: by layer, its device.
        priority: by layer; the highest runs first.
        limit_s: give up when forward cannot end by then.
        order: is filled with the layers in the order of their starts.

    Returns:
        When it ends, `NEVER` if it was given up; and how many layers have started.
    """
    layers, stride, launch_s = len(device_of), tables.stride, tables.launch_s[0]
    seconds, host_s, last_part = tables.seconds[0], tables.host_s[0], tables.last_part[0]
    to_end_s, travel_s = tables.to_end_s[0], tables.travel_s
    makes, readers, after = tables.makes, tables.readers, tables.after
    left_s, call_s = work_s(seconds, device_of), calls_s(tables, device_of)
    devices = len(left_s)
    missing = tables.missing.copy()
    ready_s, free_s = np.zeros(layers), np.zeros(tables.channels)
    _upload(tables, device_of, priority, free_s, ready_s)
    first, waiting = begins(device_of, devices), np.zeros(devices, np.int64)
    urgent, waits = np.empty(layers), np.empty(layers, np.int64)
    idle, through_s = np.ones(devices, np.bool_), np.zeros(devices)  # when the last layer so far ended
    arrivals_s = np.empty(devices)
    # a layer ends; from `layers` on, a layer's inputs are there
    when_s, events, coming = np.empty(2 * layers), np.empty(2 * layers, np.int64), 0
    for layer in range(layers):
        if not missing[layer]:
            push(when_s, events, 0, coming, ready_s[layer], layer + layers)
            coming += 1
    started, issued_s, end_s = 0, -launch_s, 0.0
    while coming:
        now_s, layer = pop(when_s, events, 0, coming)
        coming -= 1
        if layer >= layers:
            layer -= layers
            device = device_of[layer]
            push(urgent, waits, first[device], waiting[device], -priority[layer], layer)
            waiting[device] += 1
        else:
            end_s, device = now_s, device_of[layer]
            idle[device] = True
            through_s[device] = now_s
            for place in range(makes.begin[layer], makes.begin[layer + 1]):
                tensor = makes.items[place]
                for there in range(devices):
                    arrivals_s[there] = now_s if there == device else -1.0
                for reading in range(readers.begin[tensor], readers.begin[tensor + 1]):
                    reader = readers.items[reading]
                    there = device_of[reader]
                    if arrivals_s[there] < 0:
                        channel = stride * device + there
                        start_s = max(free_s[channel], now_s)
                        free_s[channel] = start_s + travel_s[tables.link[device, there], tensor]
                        arrivals_s[there] = free_s[channel]
                        issued_s += tables.send_s[0, tensor]
                    ready_s[reader] = max(ready_s[reader], arrivals_s[there])
                    missing[reader] -= 1
                    if not missing[reader]:
                        push(when_s, events, 0, coming, ready_s[reader], reader + layers)
                        coming += 1
            for place in range(after.begin[layer], after.begin[layer + 1]):
                reader = after.items[place]
                ready_s[reader] = max(ready_s[reader], now_s)
                missing[reader] -= 1
                if not missing[reader]:
                    push(when_s, events, 0, coming, ready_s[reader], reader + layers)
                    coming += 1
        if coming and when_s[0] <= now_s:
            continue  # handle all events of this time before devices choose
        for device in range(devices):
            if not idle[device]:
                continue
            if now_s + left_s[device] > limit_s:
                return NEVER, started
            if not waiting[device]:
                continue
            layer = pop(urgent, waits, first[device], waiting[device])[1]
            waiting[device] -= 1
            if now_s + to_end_s[layer] > limit_s:
                return NEVER, started
            idle[device] = False
            order[started] = layer
            started += 1
            done_s = now_s + seconds[device, layer]
            left_s[device] -= seconds[device, layer]
            if launch_s:
                issued_s += call_s[layer]
                begin_s = max(now_s, issued_s + min(launch_s, host_s[layer]))
                issued_s += host_s[layer]
                last_s = issued_s + seconds[device, layer] * last_part[layer]
                done_s = max(begin_s + seconds[device, layer], last_s)
            push(when_s, events, 0, coming, done_s, layer)
            coming += 1
    return max(end_s, _downloaded_s(tables, device_of, through_s, issued_s)), started


@compiled
def _downloaded_s(tables: Tables, device_of: Ints, through_s: Floats, now_s: float) -> float:
    """When the host has fetched outputs, one after the other."""
    for number in range(len(tables.fetched)):
        device = device_of[tables.fetched[number]]
        now_s = max(now_s + tables.fetch_s[number], through_s[device]) + tables.down_s[number, device]
    return now_s


@compiled
def _upload(tables: Tables, device_of: Ints, priority: Floats, free_s: Floats, ready_s: Floats) -> None:
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
