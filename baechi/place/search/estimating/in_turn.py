"""Forward in the code's order: each device runs its layers as the code reaches them.

No call waits then. That counts where a call that waits costs the host more than another order gains.
"""

import numpy as np

from baechi.place.search.estimating.compiled import Ints, inlined
from baechi.place.search.estimating.course import NEVER, START, Course
from baechi.place.search.estimating.dispatch import downloaded_s, upload
from baechi.place.search.estimating.tables import Tables, calls_s, work_s


@inlined
def in_turn(tables: Tables, course: Course, device_of: Ints, limit_s: float, order: Ints) -> float:
    """Run a forward.

    Args:
        tables: the problem.
        course: is told when each layer begins and ends.
        device_of: by layer, its device.
        limit_s: give up when forward cannot end by then.
        order: is filled: layers by number.

    Returns:
        When it ends, `NEVER` if it was given up.
    """
    seconds, host_s, last_part = tables.seconds[0], tables.host_s[0], tables.last_part[0]
    launch_s, call_s, left_s = tables.launch_s[0], calls_s(tables, device_of), work_s(seconds, device_of)
    layers, devices, stride = len(device_of), len(left_s), tables.stride
    ready_s, free_s, idle_s = np.zeros(layers), np.zeros(tables.channels), np.zeros(devices)
    arrivals_s = np.empty(devices)
    course.reached[0] = START
    upload(tables, device_of, np.arange(layers, 0, -1).astype(np.float64), free_s, ready_s)
    issued_s = -launch_s
    for layer in range(layers):
        order[layer] = layer
        device = device_of[layer]
        begin_s, took_s = max(idle_s[device], ready_s[layer]), seconds[device, layer]
        if begin_s + left_s[device] > limit_s or begin_s + tables.to_end_s[0, layer] > limit_s:
            return NEVER
        left_s[device] -= took_s
        end_s = begin_s + took_s
        if launch_s:
            issued_s += call_s[layer]
            first_s = max(begin_s, issued_s + min(launch_s, host_s[layer]))
            issued_s += host_s[layer]
            end_s = max(first_s + took_s, issued_s + took_s * last_part[layer])
        course.begins_s[layer], course.ends_s[layer], idle_s[device] = begin_s, end_s, end_s
        for place in range(tables.makes.begin[layer], tables.makes.begin[layer + 1]):
            tensor = tables.makes.items[place]
            arrivals_s.fill(-1.0)
            arrivals_s[device] = end_s
            for reading in range(tables.readers.begin[tensor], tables.readers.begin[tensor + 1]):
                reader = tables.readers.items[reading]
                there = device_of[reader]
                if arrivals_s[there] < 0:
                    channel = stride * device + there
                    travel_s = tables.travel_s[tables.link[device, there], tensor]
                    issued_s += tables.send_s[0, tensor]
                    free_s[channel] = max(free_s[channel], end_s, issued_s) + travel_s
                    arrivals_s[there] = free_s[channel]
                ready_s[reader] = max(ready_s[reader], arrivals_s[there])
        for place in range(tables.after.begin[layer], tables.after.begin[layer + 1]):
            reader = tables.after.items[place]
            ready_s[reader] = max(ready_s[reader], end_s)
    return float(max(idle_s.max(), downloaded_s(tables, device_of, idle_s, issued_s)))
