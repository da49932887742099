"""Estimate the step of a placement in a small fraction of the time of a simulation.

    host     issues all layers and transfers in the order, forward and back       when each is issued
    devices  one event after the other: the device that begins or ends next       an order, seconds

A device that gets free runs the ready layer with the highest priority; in backward, and without priorities,
the next in the order. The simulator finds the same seconds for the order that comes out, but for a host that
waits: for the turns of calls, and for values. Memory is ignored.
Most placements that a search tries are bad. So an estimate stops when the work that is left on a device, or
the longest way to the end, makes the step longer than a limit.
"""

from typing import NamedTuple

import numpy as np

from baechi.place.search.compiler import Floats, Ints, inlined
from baechi.place.search.tables import Tables

NEVER = float("inf")

_NONE, _NOT_YET = -1, -1.0

_ROUNDED = 1 - 1e-9
"""A tolerance: floating-point sums differ in their last digits with the order of addition."""


class Placement(NamedTuple):
    """What is estimated.

    Args:
        on: by layer, its device.
        priority: by layer; the highest runs first. Empty if layers run in the order.
        order: the layers as the host issues them; then as they begin, if there are priorities.
    """

    on: Ints
    priority: Floats
    order: Ints


class Times(NamedTuple):
    """Room for an estimate. A *copy* is a tensor on a device that reads it, or its gradient from there.

    Args:
        begins_s, ends_s: by layer, in forward.
        tail_s: by layer, the longest way from its begin to the end of forward.
        ready_s, least_s: by layer, when its inputs are there and the host has begun to issue it; when it ends
            at the earliest, since the host issues its last kernel late.
        given_s: by layer, when the hosts have issued the gradients that it waits for.
        missing: by layer, for how much it waits.
        first_copy, last_copy, next_copy: by layer, the first and the last copy that is sent when it ends; by
            copy, the next one.
        next_layer: by layer, the one that its device runs next; `_NONE` if priorities tell.
        asked_s: by copy, when the host has issued its transfer.
        sender: by copy, of the layers that send its gradient, the first in forward.
        free_s: by channel, when it is free.
        clocks_s, left_s, next_s: by device, its host's clock, or when its last layer ended; its work that has
            not begun; when it begins or ends something next.
        over_s: when forward is over; in an array of one.
        newest, runs: by device, the layer issued last; the one that it runs.
        waiting, coming: by device, how many layers wait for it; how many wait for their inputs to come.
        waits, comes: by device and place, heaps of these layers.
        ranks, comes_s: by device and place, their priorities, the sign changed; when their inputs come.
    """

    begins_s: Floats
    ends_s: Floats
    tail_s: Floats
    ready_s: Floats
    least_s: Floats
    given_s: Floats
    asked_s: Floats
    free_s: Floats
    clocks_s: Floats
    left_s: Floats
    next_s: Floats
    over_s: Floats
    missing: Ints
    first_copy: Ints
    last_copy: Ints
    next_layer: Ints
    next_copy: Ints
    sender: Ints
    newest: Ints
    runs: Ints
    waiting: Ints
    coming: Ints
    waits: Ints
    comes: Ints
    ranks: Floats
    comes_s: Floats

    @classmethod
    def of(cls, tables: Tables) -> "Times":
        """Room for estimates of a problem."""
        layers, devices = tables.layers, tables.devices
        copies = len(tables.source) * devices
        return cls(
            begins_s=np.zeros(layers),
            ends_s=np.zeros(layers),
            tail_s=np.zeros(layers),
            ready_s=np.zeros(layers),
            least_s=np.zeros(layers),
            given_s=np.zeros(layers),
            asked_s=np.zeros(copies),
            free_s=np.zeros((devices + 1) ** 2),
            clocks_s=np.zeros(devices),
            left_s=np.zeros(devices),
            next_s=np.zeros(devices),
            over_s=np.zeros(1),
            missing=np.zeros(layers, np.int64),
            first_copy=np.zeros(layers, np.int64),
            last_copy=np.zeros(layers, np.int64),
            next_layer=np.zeros(layers, np.int64),
            next_copy=np.zeros(copies, np.int64),
            sender=np.zeros(copies, np.int64),
            newest=np.zeros(devices, np.int64),
            runs=np.zeros(devices, np.int64),
            waiting=np.zeros(devices, np.int64),
            coming=np.zeros(devices, np.int64),
            waits=np.zeros(devices * layers, np.int64),
            comes=np.zeros(devices * layers, np.int64),
            ranks=np.zeros(devices * layers),
            comes_s=np.zeros(devices * layers),
        )


@inlined
def estimate(
    tables: Tables, times: Times, placement: Placement, limit_s: float, usual_s: float = 0.0
) -> float:
    """Estimate a step."""
    forward_s, backward_s = _least_s(tables, times, placement.on)
    if forward_s + backward_s > limit_s:
        return NEVER
    backward_s = max(backward_s, usual_s)
    host_s = 0.0
    if tables.launch_s:
        host_s = _issue(tables, times, placement)
        if host_s + backward_s > limit_s:
            return NEVER
    else:
        _issue_at_once(tables, times, placement)
    end_s = 0.0
    for phase in range(tables.phases):
        if phase:
            _issue_back(tables, times, placement, end_s, host_s if tables.stays else end_s)
            backward_s, times.over_s[0] = 0.0, end_s
        end_s = _run(tables, times, placement, phase, end_s, limit_s - backward_s)
        if end_s == NEVER:
            return NEVER
        if not phase:  # the host fetches what the model returns
            over_s = host_s
            for number in range(len(tables.fetched)):
                device = placement.on[tables.fetched[number]]
                over_s = max(over_s + tables.fetch_s[number], times.clocks_s[device])
                over_s += tables.down_s[number * tables.devices + device]
            end_s = max(end_s, over_s)
    return end_s


@inlined
def _least_s(tables: Tables, times: Times, on: Ints) -> tuple[float, float]:
    """The longest ways through forward and through backward, with the transfers of the placement."""
    devices, reads, before, tensors = tables.devices, tables.reads, tables.before, len(tables.source)
    tail_s, back_s, link, travel_s = times.tail_s, times.given_s, tables.link, tables.travel_s
    longest_s, longest_back_s = 0.0, 0.0
    tail_s.fill(0.0)
    back_s.fill(0.0)
    for layer in range(tables.layers - 1, -1, -1):
        device = on[layer]
        tail_s[layer] += tables.seconds[device * tables.layers + layer]
        if tables.phases > 1:
            back_s[layer] += tables.seconds[(devices + device) * tables.layers + layer]
        longest_s, longest_back_s = max(longest_s, tail_s[layer]), max(longest_back_s, back_s[layer])
        for item in range(reads.begin[layer], reads.begin[layer + 1]):
            tensor = reads.items[item]
            maker = tables.source[tensor]
            if maker >= 0:
                home, there_s, home_s = on[maker], tail_s[layer], back_s[layer]
                if home != device:
                    there_s += travel_s[link[home * (devices + 1) + device] * tensors + tensor]
                    home_s += travel_s[link[device * (devices + 1) + home] * tensors + tensor]
                tail_s[maker] = max(tail_s[maker], there_s)
                if tables.graded[item]:
                    back_s[maker] = max(back_s[maker], home_s)
        for item in range(before.begin[layer], before.begin[layer + 1]):
            maker = before.items[item]
            tail_s[maker] = max(tail_s[maker], tail_s[layer])
    return longest_s * _ROUNDED, longest_back_s * _ROUNDED


@inlined
def _issue_at_once(tables: Tables, times: Times, placement: Placement) -> None:
    """Issue a forward in no time: layers send what they make when they end (`_send`)."""
    devices, reads, asked_s, ready_s = tables.devices, tables.reads, times.asked_s, times.ready_s
    newest, on, chooses = times.newest, placement.on, len(placement.priority) > 0
    _begin(times, 0.0)
    for layer in range(tables.layers):
        ready_s[layer], times.missing[layer] = 0.0, tables.missing[layer]
    for layer in placement.order[: 0 if chooses and not tables.fed else tables.layers]:
        device = on[layer]
        for item in range(reads.begin[layer], reads.begin[layer + 1]):
            tensor = reads.items[item]
            if tables.source[tensor] < 0:
                copy = tensor * devices + device
                if asked_s[copy] < 0:
                    travel = tables.link[devices * (devices + 1) + device] * len(tables.source) + tensor
                    channel = tables.stride * devices + device
                    asked_s[copy] = _book(times.free_s, channel, 0.0, tables.travel_s[travel])
                ready_s[layer] = max(ready_s[layer], asked_s[copy])
        if not chooses:
            if newest[device] >= 0:
                times.next_layer[newest[device]] = layer
                times.missing[layer] += 1
            newest[device] = layer


@inlined
def _issue(tables: Tables, times: Times, placement: Placement) -> float:
    """Let the host issue a forward in the order. Returns when it has done so."""
    devices, launch_s, reads, readers = tables.devices, tables.launch_s, tables.reads, tables.readers
    ready_s, asked_s, newest, on = times.ready_s, times.asked_s, times.newest, placement.on
    first_copy, last_copy, next_copy = times.first_copy, times.last_copy, times.next_copy
    now_s, spread, chooses = -launch_s, False, len(placement.priority) > 0
    _begin(times, 0.0)
    for layer in range(tables.layers):
        ready_s[layer], times.missing[layer] = 0.0, tables.missing[layer]
        spread = spread or on[layer] != on[0]
    for layer in placement.order:
        device = on[layer]
        for item in range(reads.begin[layer], reads.begin[layer + 1]):
            tensor = reads.items[item]
            copy, maker = tensor * devices + device, tables.source[tensor]
            if asked_s[copy] < 0:  # it is sent when it is asked for
                now_s += tables.send_s[tensor] if now_s > -launch_s else launch_s
                asked_s[copy] = max(now_s, 0.0)
                if maker >= 0:  # behind all that its device has run; by priority that may come before it
                    behind = maker if chooses else newest[on[maker]]
                    _attach(first_copy, last_copy, next_copy, behind, copy)
                else:  # a busy host sends inputs late: they have a channel of their own
                    channel = (devices + 1) * devices + device
                    travel = tables.link[devices * (devices + 1) + device] * len(tables.source) + tensor
                    asked_s[copy] = _book(times.free_s, channel, asked_s[copy], tables.travel_s[travel])
            if maker < 0:
                ready_s[layer] = max(ready_s[layer], asked_s[copy])
        if spread and now_s > -launch_s:
            now_s += tables.call_s[layer]
        ready_s[layer] = max(ready_s[layer], now_s + min(launch_s, tables.host_s[layer]))
        now_s += tables.host_s[layer]
        took_s = tables.seconds[device * tables.layers + layer]
        times.least_s[layer] = now_s + took_s * tables.last_part[layer]
        if not chooses and newest[device] >= 0:
            times.next_layer[newest[device]] = layer
            times.missing[layer] += 1
        newest[device] = layer
        for making in range(tables.makes.begin[layer], tables.makes.begin[layer + 1]):
            tensor = tables.makes.items[making]
            for reading in range(readers.begin[tensor], readers.begin[tensor + 1]):
                there = on[readers.items[reading]]
                copy = tensor * devices + there
                if asked_s[copy] < 0 and (there == device or tables.ahead[tensor]):
                    if there != device:
                        now_s += tables.send_s[tensor]
                    asked_s[copy] = max(now_s, 0.0)
                    _attach(first_copy, last_copy, next_copy, layer, copy)
    return now_s


@inlined
def _issue_back(tables: Tables, times: Times, placement: Placement, start_s: float, host_s: float) -> None:
    """Let the hosts of all devices issue a backward, which begins at `start_s`; they go on from `host_s`."""
    devices, launch_s, node_s, reads = tables.devices, tables.launch_s, tables.node_s, tables.reads
    ready_s, asked_s, given_s, clocks_s = times.ready_s, times.asked_s, times.given_s, times.clocks_s
    newest, sender, missing, on = times.newest, times.sender, times.missing, placement.on
    begun_s = host_s - launch_s
    for loss in tables.losses:
        if loss:
            begun_s = host_s - launch_s - node_s
    _begin(times, start_s)
    clocks_s.fill(begun_s)
    for turn in range(tables.layers - 1, -1, -1):
        layer = placement.order[turn]
        ready_s[layer], missing[layer], given_s[layer] = start_s, 0, begun_s
        for item in range(reads.begin[layer], reads.begin[layer + 1]):
            if tables.graded[item]:
                sender[reads.items[item] * devices + on[layer]] = layer
    for number in range(len(tables.fetched)):
        if tables.losses[number]:  # its gradient comes from the host
            layer = tables.fetched[number]
            home = on[layer]
            clocks_s[home] += node_s + launch_s
            up_s, channel = tables.up_s[number * devices + home], tables.stride * devices + home
            ready_s[layer] = max(ready_s[layer], _book(times.free_s, channel, clocks_s[home], up_s))
            given_s[layer] = max(given_s[layer], clocks_s[home])
            clocks_s[home] += node_s
    for turn in range(tables.layers - 1, -1, -1):
        layer = placement.order[turn]
        device = on[layer]
        if launch_s:
            _launch_back(tables, times, on, layer, begun_s)
        if newest[device] >= 0:
            times.next_layer[newest[device]] = layer
            missing[layer] += 1
        newest[device] = layer
        for item in range(reads.begin[layer + 1] - 1, reads.begin[layer] - 1, -1):
            tensor = reads.items[item]
            copy, maker = tensor * devices + device, tables.source[tensor]
            if tables.graded[item] and sender[copy] == layer and on[maker] != device:
                clocks_s[device] += node_s + launch_s
                asked_s[copy] = clocks_s[device]
                _attach(times.first_copy, times.last_copy, times.next_copy, layer, copy)
                missing[maker] += 1
                if not tables.ahead[tensor]:  # it is waited for at once
                    clocks_s[on[maker]] += node_s
                    given_s[maker] = max(given_s[maker], asked_s[copy])


@inlined
def _launch_back(tables: Tables, times: Times, on: Ints, layer: int, begun_s: float) -> None:
    """Let a device's host issue the backward of a layer, behind gradients, which it adds up."""
    device, row, clocks_s, given_s = on[layer], tables.layers + layer, times.clocks_s, times.given_s
    asked_s, makes, reads, launch_s = times.asked_s, tables.makes, tables.reads, tables.launch_s
    for making in range(makes.begin[layer], makes.begin[layer + 1]):
        tensor, meets = makes.items[making], False
        first = tensor * tables.devices
        for copy in range(first, first + tables.devices * tables.ahead[tensor]):
            if asked_s[copy] >= 0:
                clocks_s[device] += tables.node_s
                given_s[layer] = max(given_s[layer], asked_s[copy])
                if meets:
                    clocks_s[device] = max(clocks_s[device], asked_s[copy]) + launch_s
                    given_s[layer] = max(given_s[layer], clocks_s[device])
                meets = True
    now_s = max(clocks_s[device], given_s[layer])
    last_s = now_s + tables.host_s[row]
    for item in range(reads.begin[layer], reads.begin[layer + 1]):
        maker = tables.source[reads.items[item]]  # its last kernel adds to what came before
        if tables.graded[item] and on[maker] == device and given_s[maker] > begun_s:
            last_s = max(last_s, given_s[maker] + launch_s)
    clocks_s[device] = last_s
    times.ready_s[layer] = max(times.ready_s[layer], now_s + min(launch_s, tables.host_s[row]))
    took_s = tables.seconds[(tables.devices + device) * tables.layers + layer]
    times.least_s[layer] = last_s + took_s * tables.last_part[row]


@inlined
def _run(
    tables: Tables, times: Times, placement: Placement, phase: int, start_s: float, limit_s: float
) -> float:
    """Run a phase as it was issued. Returns when its last layer ends; `NEVER` if that is too late."""
    layers, devices, on = tables.layers, tables.devices, placement.on
    runs, next_s, left_s, missing = times.runs, times.next_s, times.left_s, times.missing
    now_s, end_s, started, chooses = start_s, start_s, 0, not phase and len(placement.priority) > 0
    times.clocks_s.fill(start_s)
    times.waiting.fill(0)
    times.coming.fill(0)
    left_s.fill(0.0)
    runs.fill(_NONE)
    next_s.fill(NEVER)
    for layer in range(layers):
        left_s[on[layer]] += tables.seconds[(phase * devices + on[layer]) * layers + layer]
        missing[layer] += 1
        _release(times, placement, layer, start_s)
    while True:
        device, soonest_s = 0, next_s[0]
        for other in range(1, devices):  # what ends at a time comes before what begins
            if next_s[other] < soonest_s or (next_s[other] == soonest_s and runs[device] < 0 <= runs[other]):
                device, soonest_s = other, next_s[other]
        if soonest_s == NEVER:
            return end_s
        now_s, layer = soonest_s, runs[device]
        if layer >= 0:
            end_s, times.clocks_s[device], runs[device] = now_s, now_s, _NONE
            next_s[device] = _next_s(times, layers, device, now_s)
            _end(tables, times, placement, phase, layer, now_s)
            continue
        layer = _first(times, placement, device, now_s)
        tail_s = tables.to_end_s[layers + layer] if phase else times.tail_s[layer]
        if now_s + max(left_s[device], tail_s) > limit_s:
            return NEVER
        took_s = tables.seconds[(phase * devices + device) * layers + layer]
        left_s[device] -= took_s
        runs[device], next_s[device] = layer, now_s + took_s
        if tables.launch_s:
            next_s[device] = max(next_s[device], times.least_s[layer])
        if not phase:
            times.begins_s[layer], times.ends_s[layer] = now_s, next_s[device]
        if chooses:
            placement.order[started] = layer
            started += 1


@inlined
def _end(tables: Tables, times: Times, placement: Placement, phase: int, layer: int, now_s: float) -> None:
    """A layer has ended: its copies are sent, and those that wait for it wait for one thing less."""
    ready_s, readers, after, devices, on = (
        times.ready_s,
        tables.readers,
        tables.after,
        tables.devices,
        placement.on,
    )
    if times.next_layer[layer] >= 0:
        _release(times, placement, times.next_layer[layer], now_s)
    if not phase and not tables.launch_s:
        _send(tables, times, placement, layer, now_s)
    copy = times.first_copy[layer]
    while copy >= 0:
        tensor = copy // devices
        maker = tables.source[tensor]
        there, there_s = on[maker] if phase else copy % devices, now_s
        if there != on[layer]:
            travel = tables.link[on[layer] * (devices + 1) + there] * len(tables.source) + tensor
            channel, there_s = tables.stride * on[layer] + there, max(now_s, times.asked_s[copy])
            there_s = _book(times.free_s, channel, there_s, tables.travel_s[travel])
        if phase:
            ready_s[maker] = max(ready_s[maker], there_s)
            _release(times, placement, maker, now_s)
        else:
            for reading in range(readers.begin[tensor], readers.begin[tensor + 1]):
                reader = readers.items[reading]
                if on[reader] == there:
                    ready_s[reader] = max(ready_s[reader], there_s)
                    _release(times, placement, reader, now_s)
        copy = times.next_copy[copy]
    if not phase:
        for item in range(after.begin[layer], after.begin[layer + 1]):
            _release(times, placement, after.items[item], now_s)


@inlined
def _send(tables: Tables, times: Times, placement: Placement, layer: int, now_s: float) -> None:
    """Send what a layer has made, once to each device that reads it."""
    devices, readers, asked_s, ready_s = tables.devices, tables.readers, times.asked_s, times.ready_s
    on = placement.on
    home = on[layer]
    for making in range(tables.makes.begin[layer], tables.makes.begin[layer + 1]):
        tensor = tables.makes.items[making]
        for reading in range(readers.begin[tensor], readers.begin[tensor + 1]):
            reader = readers.items[reading]
            there, there_s = on[reader], now_s
            if there != home:
                copy = tensor * devices + there
                if asked_s[copy] < 0:  # from here on, when it is there
                    travel = tables.link[home * (devices + 1) + there] * len(tables.source) + tensor
                    channel = tables.stride * home + there
                    asked_s[copy] = _book(times.free_s, channel, now_s, tables.travel_s[travel])
                there_s = asked_s[copy]
            ready_s[reader] = max(ready_s[reader], there_s)
            _release(times, placement, reader, now_s)


@inlined
def _begin(times: Times, start_s: float) -> None:
    """Nothing has been issued."""
    times.free_s.fill(start_s)
    times.asked_s.fill(_NOT_YET)
    times.first_copy.fill(_NONE)
    times.next_copy.fill(_NONE)
    times.next_layer.fill(_NONE)
    times.newest.fill(_NONE)


@inlined
def _release(times: Times, placement: Placement, layer: int, now_s: float) -> None:
    """A layer waits for one thing less; for its device if that was the last."""
    times.missing[layer] -= 1
    if times.missing[layer]:
        return
    device, ready_s = placement.on[layer], times.ready_s[layer]
    first = device * len(times.missing)
    if ready_s > now_s:
        _push(times.comes, times.comes_s, first, times.coming[device], layer, ready_s)
        times.coming[device] += 1
    else:
        ready_s = now_s
        _wait(times, placement, device, layer)
    if times.runs[device] < 0:
        times.next_s[device] = min(times.next_s[device], ready_s)


@inlined
def _wait(times: Times, placement: Placement, device: int, layer: int) -> None:
    """A layer waits for its device, behind those of higher priority."""
    rank = -placement.priority[layer] if len(placement.priority) else 0.0
    _push(times.waits, times.ranks, device * len(times.missing), times.waiting[device], layer, rank)
    times.waiting[device] += 1


@inlined
def _next_s(times: Times, layers: int, device: int, now_s: float) -> float:
    """When a device that is free begins something."""
    if times.waiting[device]:
        return now_s
    return max(now_s, times.comes_s[device * layers]) if times.coming[device] else NEVER


@inlined
def _first(times: Times, placement: Placement, device: int, now_s: float) -> int:
    """Take the layer that a device begins."""
    first = device * len(times.missing)
    while times.coming[device] and times.comes_s[first] <= now_s:
        times.coming[device] -= 1
        _wait(times, placement, device, _pop(times.comes, times.comes_s, first, times.coming[device]))
    times.waiting[device] -= 1
    return _pop(times.waits, times.ranks, first, times.waiting[device])


@inlined
def _push(heap: Ints, ranks: Floats, first: int, size: int, one: int, rank: float) -> None:
    """Add to a heap, which has the lowest rank at `first`; of equal ones the lowest number."""
    place = size
    while place:
        above = (place - 1) // 2
        if ranks[first + above] < rank or (ranks[first + above] == rank and heap[first + above] < one):
            break
        heap[first + place], ranks[first + place] = heap[first + above], ranks[first + above]
        place = above
    heap[first + place], ranks[first + place] = one, rank


@inlined
def _pop(heap: Ints, ranks: Floats, first: int, size: int) -> int:
    """Take what has the lowest rank off a heap, which keeps `size` more."""
    found, place = heap[first], 0
    one, rank = heap[first + size], ranks[first + size]
    while 2 * place + 1 < size:
        below = first + 2 * place + 1
        if below + 1 < first + size and (
            ranks[below + 1] < ranks[below]
            or (ranks[below + 1] == ranks[below] and heap[below + 1] < heap[below])
        ):
            below += 1
        if rank < ranks[below] or (rank == ranks[below] and one < heap[below]):
            break
        heap[first + place], ranks[first + place] = heap[below], ranks[below]
        place = below - first
    heap[first + place], ranks[first + place] = one, rank
    return int(found)


@inlined
def _attach(first_copy: Ints, last_copy: Ints, next_copy: Ints, layer: int, copy: int) -> None:
    """Let a copy be sent when a layer ends."""
    if first_copy[layer] < 0:
        first_copy[layer] = copy
    else:
        next_copy[last_copy[layer]] = copy
    last_copy[layer] = copy


@inlined
def _book(free_s: Floats, channel: int, ready_s: float, took_s: float) -> float:
    """When a copy arrives, behind what is on the channel."""
    free_s[channel] = max(free_s[channel], ready_s) + took_s
    return float(free_s[channel])
