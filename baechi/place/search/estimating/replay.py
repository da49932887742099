"""Backward in the reverse of given orders: the other half of an estimate; see `dispatch`."""

import numpy as np

from baechi.place.search.estimating.compiled import Floats, Ints, inlined
from baechi.place.search.estimating.course import NEVER
from baechi.place.search.estimating.heap import pop, push
from baechi.place.search.estimating.tables import Lists, Tables, begins, work_s


@inlined
def replay(tables: Tables, device_of: Ints, order: Ints, start_s: float, limit_s: float) -> float:
    """Run a backward.

    Args:
        tables: the problem.
        device_of: by layer, its device.
        order: the layers as forward started them.
        start_s: when backward begins.
        limit_s: give up when it cannot end by then.

    Returns:
        When it ends; `NEVER` if it was given up.
    """
    seconds, host_s, last_part = tables.seconds[1], tables.host_s[1], tables.last_part[1]
    to_end_s, launch_s, stride = tables.to_end_s[1], tables.launch_s[1], tables.stride
    layers, left_s = len(device_of), work_s(tables.seconds[1], device_of)
    devices = len(left_s)
    gives, missing = _gradients(tables, device_of, order)
    queues = _sorted(order, device_of[order], devices)
    next_of = queues.begin[1:] - 1  # the last runs first
    ready_s, free_s = np.full(layers, start_s), np.full(tables.channels, start_s)
    issued_s = np.full(devices, start_s - launch_s)
    _losses(tables, device_of, free_s, ready_s)
    idle_s = np.full(devices, start_s)  # since when; `NEVER` while it runs a layer
    when_s, events, coming = np.empty(devices), np.empty(devices, np.int64), 0
    looked = np.ones(devices, np.bool_)
    end_s = start_s
    while True:
        for device in range(devices):
            if not looked[device]:
                continue
            looked[device] = False
            if next_of[device] < queues.begin[device] or idle_s[device] == NEVER:
                continue
            layer = queues.items[next_of[device]]
            if missing[layer]:
                continue
            next_of[device] -= 1
            now_s = max(idle_s[device], ready_s[layer])
            if now_s + left_s[device] > limit_s or now_s + to_end_s[layer] > limit_s:
                return NEVER
            took_s = seconds[device, layer]
            left_s[device] -= took_s
            idle_s[device] = NEVER
            if launch_s:
                first_s = issued_s[device] + min(launch_s, host_s[layer])
                sends = gives.begin[layer + 1] - gives.begin[layer]
                issued_s[device] += host_s[layer] + (launch_s + tables.node_s) * sends
                now_s = max(now_s, first_s, issued_s[device] - took_s * (1 - last_part[layer]))
            push(when_s, events, 0, coming, now_s + took_s, layer)
            coming += 1
        if not coming:
            return end_s
        end_s, layer = pop(when_s, events, 0, coming)
        coming -= 1
        device = device_of[layer]
        idle_s[device] = end_s
        looked[device] = True
        for place in range(gives.begin[layer], gives.begin[layer + 1]):
            tensor = gives.items[place]
            maker = tables.source[tensor]
            home = device_of[maker]
            channel = stride * device + home
            free_s[channel] = max(end_s, free_s[channel]) + tables.travel_s[tables.link[device, home], tensor]
            ready_s[maker] = max(ready_s[maker], free_s[channel])
            issued_s[home] += tables.node_s
            missing[maker] -= 1
            if not missing[maker]:
                looked[home] = True


@inlined
def _losses(tables: Tables, device_of: Ints, free_s: Floats, ready_s: Floats) -> None:
    """Set when the gradients of the model's outputs arrive: they come from the host."""
    for number in range(len(tables.fetched)):
        if tables.losses[number]:
            maker = tables.fetched[number]
            channel = tables.stride * tables.seconds.shape[1] + device_of[maker]
            free_s[channel] += tables.up_s[number, device_of[maker]]
            ready_s[maker] = max(ready_s[maker], free_s[channel])


@inlined
def _sorted(items: Ints, numbers: Ints, most: int) -> Lists:
    """By number, the items that have it, in their order."""
    begin = begins(numbers, most)
    filled, found = begin.copy(), np.empty(len(items), np.int64)
    for place in range(len(items)):
        number = numbers[place]
        found[filled[number]] = items[place]
        filled[number] += 1
    return Lists(begin, found)


@inlined
def _gradients(tables: Tables, device_of: Ints, order: Ints) -> tuple[Lists, Ints]:
    """By layer: tensors whose gradient goes back when it has run, and how many gradients it waits for.

    On each device it is the first reader in forward, the last in backward, that sends the sum back.
    """
    layers, graded, makes = len(order), tables.graded, tables.makes
    place, missing = np.empty(layers, np.int64), np.zeros(layers, np.int64)
    for number in range(layers):
        place[order[number]] = number
    senders, sent = np.empty(len(graded.items), np.int64), np.empty(len(graded.items), np.int64)
    found = 0
    for layer in range(layers):
        for making in range(makes.begin[layer], makes.begin[layer + 1]):
            tensor = makes.items[making]
            first = np.full(tables.seconds.shape[1], -1)
            for reading in range(graded.begin[tensor], graded.begin[tensor + 1]):
                reader = graded.items[reading]
                there = device_of[reader]
                if there != device_of[layer] and (first[there] < 0 or place[reader] < place[first[there]]):
                    first[there] = reader
            for reader in first:
                if reader >= 0:
                    missing[layer] += 1
                    senders[found], sent[found] = reader, tensor
                    found += 1
    return _sorted(sent[:found], senders[:found], layers), missing
