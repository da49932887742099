"""Forward by priority: a device that gets free runs, of what is ready there, what is most urgent.

So an order comes out together with its time. One long function, since a call for each event would take
as long again; it is called thousands of times in a search.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from baechi.place.tables import Tables

NEVER = float("inf")


def dispatch(
    tables: Tables, device_of: Sequence[int], priority: Sequence[float], limit_s: float
) -> tuple[float, list[int]]:
    """Run a forward.

    Args:
        tables: the task.
        device_of: by layer, its device.
        priority: by layer; the highest runs first.
        limit_s: give up when forward cannot end by then.

    Returns:
        When it ends, `NEVER` if it was given up; and the layers in the order of their starts.
    """
    layers, makes, after = tables.layers, tables.makes, tables.task.indexed.after
    seconds, travel_s, to_end_s = tables.seconds[0], tables.travel_s, tables.to_end_s[0]
    host_s, launch_s, stride = tables.host_s[0], tables.launch_s[0], tables.stride
    last_part = tables.last_part[0]
    left_s = tables.work_s(0, device_of)
    missing = tables.missing[:]
    free_s = [0.0] * tables.channels
    ready_s = _uploaded_s(tables, device_of, priority, free_s)
    waiting: list[list[tuple[float, int]]] = [[] for _ in left_s]
    idle = [True for _ in left_s]
    through_s = [0.0 for _ in left_s]  # by device, when the last layer so far ended
    order: list[int] = []
    issued_s, end_s = -launch_s, 0.0
    # a layer ends; from `layers` on, a layer's inputs are there
    events = [(ready_s[layer], layer + layers) for layer in range(layers) if not missing[layer]]
    events.sort()
    while events:
        now_s, layer = heappop(events)
        if layer >= layers:
            layer -= layers
            heappush(waiting[device_of[layer]], (-priority[layer], layer))
        else:
            end_s, device = now_s, device_of[layer]
            idle[device] = True
            through_s[device] = now_s
            for tensor, readers in makes[layer]:
                arrivals_s = {device: now_s}
                for reader in readers:
                    there = device_of[reader]
                    if there not in arrivals_s:
                        channel = stride * device + there
                        start_s = free_s[channel] if free_s[channel] > now_s else now_s
                        free_s[channel] = arrivals_s[there] = start_s + travel_s[device][there][tensor]
                        issued_s += launch_s
                    if arrivals_s[there] > ready_s[reader]:
                        ready_s[reader] = arrivals_s[there]
                    missing[reader] -= 1
                    if not missing[reader]:
                        heappush(events, (ready_s[reader], reader + layers))
            for reader in after[layer]:
                ready_s[reader] = max(ready_s[reader], now_s)
                missing[reader] -= 1
                if not missing[reader]:
                    heappush(events, (ready_s[reader], reader + layers))
        if events and events[0][0] <= now_s:
            continue  # more gets ready at this time: then devices choose
        for device, queue in enumerate(waiting):
            if not idle[device]:
                continue
            if now_s + left_s[device] > limit_s:
                return NEVER, order
            if not queue:
                continue
            layer = heappop(queue)[1]
            if now_s + to_end_s[layer] > limit_s:
                return NEVER, order
            idle[device] = False
            order.append(layer)
            work_s = seconds[device][layer]
            left_s[device] -= work_s
            begin_s = now_s
            if launch_s:
                begin_s = max(now_s, issued_s + min(launch_s, host_s[layer]))
                issued_s += host_s[layer]
                heappush(events, (max(begin_s + work_s, issued_s + work_s * last_part[layer]), layer))
            else:
                heappush(events, (begin_s + work_s, layer))
    return max(end_s, _downloaded_s(tables, device_of, through_s, issued_s)), order


def _downloaded_s(
    tables: Tables, device_of: Sequence[int], through_s: Sequence[float], now_s: float
) -> float:
    """When the host has fetched what the model returns, one after the other."""
    for maker, _, ways_s in tables.returned:
        device = device_of[maker]
        now_s = max(now_s + tables.launch_s[0], through_s[device]) + ways_s[device][0]
    return now_s


def _uploaded_s(
    tables: Tables, device_of: Sequence[int], priority: Sequence[float], free_s: list[float]
) -> list[float]:
    """By layer, when the inputs of the model that it reads are there; 0 where it reads none."""
    ready_s = [0.0] * tables.layers
    host = tables.task.host
    for tensor, readers in tables.uploads:
        arrivals_s: dict[int, float] = {}
        for reader in sorted(readers, key=lambda reader: -priority[reader]):
            there = device_of[reader]
            if there not in arrivals_s:
                channel = tables.stride * host + there
                free_s[channel] += tables.travel_s[host][there][tensor]
                arrivals_s[there] = free_s[channel]
            ready_s[reader] = max(ready_s[reader], arrivals_s[there])
    return ready_s
