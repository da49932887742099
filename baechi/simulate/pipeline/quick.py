"""How long a placement's pipelined step takes, by a few orders: for a search over placements."""

from collections.abc import Sequence

from baechi.simulate.pipeline.bounds import shortest_pipeline_s
from baechi.simulate.pipeline.coster import PipelineCoster
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.list_scheduler import Listed
from baechi.simulate.pipeline.memory import needed_bytes
from baechi.simulate.pipeline.rules import RULES, limits_of

_HOPELESS = 1.05
"""If the step with all microbatches in flight is this many times too long, no other order is tried."""


class QuickStep:
    """Predicts steps of placements of one graph on one cluster.

    Args:
        coster: what placements cost.
        microbatches: how many.
        closed: whether what follows the tasks counts. It takes all placements about equally long, and a
            search that counts it sees their differences less.
    """

    def __init__(self, coster: PipelineCoster, microbatches: int, *, closed: bool = False) -> None:
        self._coster, self._microbatches, self._closed = coster, microbatches, closed
        self._memory = [device.memory_bytes for device in coster.cluster.devices]

    def __call__(self, device_of: Sequence[int], at_most_s: float) -> tuple[int, float]:
        """Predict the step of a placement."""
        costs = self._coster(device_of)
        least_s = shortest_pipeline_s(costs, self._microbatches, closed=self._closed)
        if least_s > at_most_s:
            return 0, least_s
        limits = list(limits_of(costs, self._microbatches))
        best = most = self._judged(costs, "bottom level", limits[-1], least_s)
        if most[1] > _HOPELESS * at_most_s:
            return best
        shorter_s = float("inf") if most[0] else most[1]  # of longer steps memory does not matter
        best = min(best, self._judged(costs, "backward first", limits[0], least_s, shorter_s))
        if most[0] and not best[0]:  # in between: as many in flight as there is memory for
            fits, too_many = 0, len(limits) - 1
            while too_many - fits > 1:
                middle = (fits + too_many) // 2
                found = self._judged(costs, "backward first", limits[middle], least_s)
                fits, too_many = (fits, middle) if found[0] else (middle, too_many)
                best = min(best, found)
        return best

    def _judged(
        self,
        costs: PipelineCosts,
        rule: str,
        limits: Sequence[int],
        least_s: float,
        shorter_s: float = float("inf"),
    ) -> tuple[int, float]:
        """By how much too full, and how long, an order by a rule is."""
        ranks = RULES[rule](costs, self._microbatches)
        schedule = Listed(costs, self._microbatches, ranks, limits, in_code_order=True)
        step_s = max(least_s, schedule.step_s if self._closed else schedule.makespan_s)
        if step_s >= shorter_s:
            return 0, step_s
        peaks = needed_bytes(costs, list(schedule.start_s))
        excess = sum([max(0, peak - limit) for peak, limit in zip(peaks, self._memory, strict=True)])
        return excess, step_s
