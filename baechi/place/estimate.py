"""What a placement takes, in a fraction of a simulation.

The seconds are those that the simulator finds for the order that comes with them, but where several
transfers are ready at the very same time, and where the host is late with transfers. Memory is not
looked at. Most placements that a search tries are bad: an estimate ends as soon as the work that is
left on a device, or the longest path that is left, makes the step longer than a limit.
"""

from collections.abc import Sequence

from baechi.place.dispatch import NEVER, dispatch
from baechi.place.replay import replay
from baechi.place.tables import Tables
from baechi.place.task import Task


class Estimate:
    """Estimates for one task.

    Args:
        task: what is placed.
    """

    def __init__(self, task: Task) -> None:
        self._tables = Tables(task)
        self._backward_s = max(self._tables.to_end_s[1], default=0.0) if task.training else 0.0

    def __call__(
        self, device_of: Sequence[int], priority: Sequence[float], limit_s: float = NEVER
    ) -> tuple[float, list[int]]:
        """Estimate a step.

        Args:
            device_of: by layer, its device.
            priority: by layer; the highest runs first.
            limit_s: how long the step may be.

        Returns:
            Seconds and the order of the layers; infinitely many and a part of the order if it is
            longer than the limit.
        """
        if not self._tables.task.training:
            return dispatch(self._tables, device_of, priority, limit_s)
        backward_s = max(self._backward_s, *self._tables.work_s(1, device_of))
        end_s, order = dispatch(self._tables, device_of, priority, limit_s - backward_s)
        if end_s == NEVER:
            return end_s, order
        return replay(self._tables, device_of, order, end_s, limit_s), order
