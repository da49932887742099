"""How long a placement's pipelined step takes, by a few orders: for a search over placements."""

from collections.abc import Sequence

from baechi.simulate.pipeline.bounds import shortest_pipeline_s
from baechi.simulate.pipeline.costs import PipelineCoster, PipelineCosts
from baechi.simulate.pipeline.listing import listed
from baechi.simulate.pipeline.memory import memory_of
from baechi.simulate.pipeline.rules import RULES, limits_of

_TRIES = (("backward first", 0), ("bottom level", 1), ("forward first", 2))
"""Rules, each with its limits: the fewest, those in the middle, the most."""


class QuickStep:
    """Predicts steps of placements of one graph on one cluster.

    Args:
        coster: what placements cost.
        microbatches: how many.
    """

    def __init__(self, coster: PipelineCoster, microbatches: int) -> None:
        self._coster, self._microbatches = coster, microbatches
        self._memory = [device.memory_bytes for device in coster.cluster.devices]

    def __call__(self, device_of: Sequence[int], at_most_s: float) -> tuple[int, float]:
        """Predict the step of a placement.

        Args:
            device_of: by node in code order, its device.
            at_most_s: a step that is longer than this does not matter.

        Returns:
            By how many bytes devices are too full, and seconds; if they are above the limit, a bound.
        """
        costs = self._coster(device_of)
        least_s = max(shortest_pipeline_s(costs, self._microbatches), self._host_s(costs))
        if least_s > at_most_s:
            return 0, least_s
        limits = list(limits_of(costs, self._microbatches))
        found = []
        for rule, height in _TRIES:
            ranks = RULES[rule](costs, self._microbatches)
            allowed = limits[height * (len(limits) - 1) // 2]
            schedule = listed(costs, self._microbatches, ranks, allowed, in_code_order=True)
            peaks = memory_of(costs, schedule.started).peak_bytes
            pairs = zip(peaks, self._memory, strict=True)
            excess = sum([max(0, peak - limit) for peak, limit in pairs])
            found.append((excess, max(least_s, schedule.makespan_s)))
        return min(found)

    def _host_s(self, costs: PipelineCosts) -> float:
        """The host's time for all tasks."""
        each_s = sum(costs.host_forward_s)
        if costs.units.training:
            each_s += sum(costs.host_backward_s)
        return self._microbatches * each_s + (self._microbatches - 1) * sum(costs.add_host_s)
