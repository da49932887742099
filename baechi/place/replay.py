"""Backward in the reverse of given orders: the other half of an estimate; see `dispatch`."""

from collections.abc import Sequence
from heapq import heappop, heappush

from baechi.place.dispatch import NEVER
from baechi.place.tables import Tables


def replay(
    tables: Tables, device_of: Sequence[int], order: Sequence[int], start_s: float, limit_s: float
) -> float:
    """Run a backward.

    Args:
        tables: the task.
        device_of: by layer, its device.
        order: the layers as forward started them.
        start_s: when backward begins.
        limit_s: give up when it cannot end by then.

    Returns:
        When it ends; `NEVER` if it was given up.
    """
    source = tables.task.indexed.source
    seconds, travel_s, to_end_s = tables.seconds[1], tables.travel_s, tables.to_end_s[1]
    host_s, launch_s, stride = tables.host_s[1], tables.launch_s[1], tables.stride
    last_part = tables.last_part[1]
    left_s = tables.work_s(1, device_of)
    queues: list[list[int]] = [[] for _ in left_s]  # the last runs first
    for layer in order:
        queues[device_of[layer]].append(layer)
    gives, missing = _gradients(tables, device_of, order)
    ready_s = [start_s] * tables.layers
    free_s = [start_s] * tables.channels
    issued_s = [start_s - launch_s for _ in left_s]
    for maker, is_loss, ways_s in tables.returned:
        if is_loss:  # its gradient comes from the host
            channel = stride * tables.task.host + device_of[maker]
            free_s[channel] += ways_s[device_of[maker]][1]
            ready_s[maker] = max(ready_s[maker], free_s[channel])
    idle_s = [start_s for _ in left_s]  # since when; `NEVER` while it runs a layer
    events: list[tuple[float, int]] = []
    looked = list(range(len(queues)))
    end_s = start_s
    while True:
        for device in looked:
            queue = queues[device]
            if not queue or missing[queue[-1]] or idle_s[device] == NEVER:
                continue
            layer = queue.pop()
            now_s = max(idle_s[device], ready_s[layer])
            if now_s + left_s[device] > limit_s or now_s + to_end_s[layer] > limit_s:
                return NEVER
            work_s = seconds[device][layer]
            left_s[device] -= work_s
            idle_s[device] = NEVER
            if launch_s:
                first_s = issued_s[device] + min(launch_s, host_s[layer])
                issued_s[device] += host_s[layer] + launch_s * len(gives[layer])
                now_s = max(now_s, first_s, issued_s[device] - work_s * (1 - last_part[layer]))
            heappush(events, (now_s + work_s, layer))
        if not events:
            return end_s
        end_s, layer = heappop(events)
        device = device_of[layer]
        idle_s[device] = end_s
        looked = [device]
        for tensor in gives[layer]:
            maker = source[tensor]
            home = device_of[maker]
            channel = stride * device + home
            free_s[channel] = max(end_s, free_s[channel]) + travel_s[device][home][tensor]
            ready_s[maker] = max(ready_s[maker], free_s[channel])
            missing[maker] -= 1
            if not missing[maker]:
                looked.append(home)


def _gradients(
    tables: Tables, device_of: Sequence[int], order: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """By layer: tensors whose gradient goes back when it has run, and how many gradients it waits for.

    On each device it is the first reader in forward, the last in backward, that sends the sum back.
    """
    place = [0] * tables.layers
    for number, layer in enumerate(order):
        place[layer] = number
    graded = tables.task.indexed.graded
    gives: list[list[int]] = [[] for _ in place]
    missing = [0] * tables.layers
    for layer, made in enumerate(tables.makes):
        home = device_of[layer]
        for tensor, _ in made:
            first: dict[int, int] = {}
            for reader in graded[tensor]:
                there = device_of[reader]
                if there != home and (there not in first or place[reader] < place[first[there]]):
                    first[there] = reader
            missing[layer] += len(first)
            for reader in first.values():
                gives[reader].append(tensor)
    return gives, missing
