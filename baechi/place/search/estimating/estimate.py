"""Estimate the step of a placement in a small fraction of the time of a simulation.

The estimate comes with an order of the layers. The simulator finds the same time for that order, with two
exceptions: several transfers are ready at one time, or the host is late with transfers. Memory is ignored.
Most placements that a search tries are bad. So an estimate stops when the remaining work of a device, or
the longest remaining path, makes the step longer than a limit. It returns at once if the host alone needs
longer than the limit to issue all kernels and transfers.
"""

import numpy as np

from baechi.place.search.estimating.compiled import Floats, Ints, inlined
from baechi.place.search.estimating.course import NEVER, Course
from baechi.place.search.estimating.differences import Change
from baechi.place.search.estimating.dispatch import dispatch
from baechi.place.search.estimating.in_turn import in_turn
from baechi.place.search.estimating.replay import replay
from baechi.place.search.estimating.tables import Tables, calls_s, work_s

_ROUNDED = 1 - 1e-9
"""A tolerance: floating-point sums differ in their last digits with the order of addition."""


@inlined
def estimate(
    tables: Tables,
    course: Course,
    device_of: Ints,
    priority: Floats,
    limit_s: float,
    order: Ints,
    change: Change,
) -> float:
    """Estimate a step.

    Args:
        tables: the problem.
        course: see `dispatch`, as `change`.
        device_of: by layer, its device.
        priority: by layer; the highest runs first.
        limit_s: how long the step may be.
        order: is filled with the layers in their order; see `dispatch`.
        change: what has changed since the course was accepted.

    Returns:
        Seconds; `NEVER`, and a part of the order, if it is longer than the limit.
    """
    forward_s, backward_s = _issued_s(tables, device_of) if tables.charged else (0.0, 0.0)
    if forward_s + backward_s > limit_s:
        return NEVER
    if tables.training:
        backward_s = max(backward_s, tables.backward_s)
        for device_s in work_s(tables.seconds[1], device_of):
            backward_s = max(backward_s, device_s)
    left_s = limit_s - backward_s
    if tables.in_turn:
        end_s = in_turn(tables, course, device_of, left_s, order)
    else:
        end_s = dispatch(tables, course, device_of, priority, left_s, order, change)[0]
    if end_s == NEVER or not tables.training:
        return end_s
    return replay(tables, device_of, order, end_s, limit_s)


@inlined
def _issued_s(tables: Tables, device_of: Ints) -> tuple[float, float]:
    """The least seconds for the host to issue all kernels and transfers, in forward and in backward."""
    forward_s = -tables.launch_s[0]
    for call_s in calls_s(tables, device_of):
        forward_s += call_s
    for host_s in tables.host_s[0]:
        forward_s += host_s
    backward_s = np.zeros(tables.seconds.shape[1])
    if tables.training:
        backward_s -= tables.launch_s[1]
        for layer in range(len(device_of)):
            backward_s[device_of[layer]] += tables.host_s[1, layer]
    there, back = np.full(len(backward_s), -1), np.full(len(backward_s), -1)  # to which tensors went last
    for tensor in range(len(tables.source)):
        maker = tables.source[tensor]
        if maker < 0:
            continue
        for place in range(tables.readers.begin[tensor], tables.readers.begin[tensor + 1]):
            device = device_of[tables.readers.items[place]]
            if device != device_of[maker] and there[device] != tensor:
                there[device] = tensor
                forward_s += tables.send_s[0, tensor]
        for place in range(tables.graded.begin[tensor], tables.graded.begin[tensor + 1]):
            device = device_of[tables.graded.items[place]]
            if tables.training and device != device_of[maker] and back[device] != tensor:
                back[device] = tensor
                backward_s[device] += tables.launch_s[1] + tables.node_s
                backward_s[device_of[maker]] += tables.node_s
    return max(forward_s, 0.0) * _ROUNDED, max(backward_s.max(), 0.0) * _ROUNDED
