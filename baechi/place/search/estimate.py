"""What a placement takes, in a small fraction of a simulation.

The seconds are those that the simulator finds for the order that comes with them, but where several
transfers are ready at the very same time, and where the host is late with transfers. Memory is not
looked at. Most placements that a search tries are bad: an estimate ends as soon as the work that is
left on a device, or the longest path that is left, makes the step longer than a limit.
"""

from baechi.place.search.compiled import Floats, Ints, compiled
from baechi.place.search.dispatch import NEVER, dispatch
from baechi.place.search.replay import replay
from baechi.place.search.tables import Tables, work_s


@compiled
def estimate(tables: Tables, device_of: Ints, priority: Floats, limit_s: float, order: Ints) -> float:
    """Estimate a step.

    Args:
        tables: the task.
        device_of: by layer, its device.
        priority: by layer; the highest runs first.
        limit_s: how long the step may be.
        order: is filled with the layers in their order.

    Returns:
        Seconds; `NEVER`, and a part of the order, if it is longer than the limit.
    """
    if not tables.training:
        return dispatch(tables, device_of, priority, limit_s, order)[0]
    backward_s = tables.backward_s
    for device_s in work_s(tables.seconds[1], device_of):
        backward_s = max(backward_s, device_s)
    end_s = dispatch(tables, device_of, priority, limit_s - backward_s, order)[0]
    if end_s == NEVER:
        return NEVER
    return replay(tables, device_of, order, end_s, limit_s)
