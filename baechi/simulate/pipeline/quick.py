"""How long a placement's pipelined step takes, by a few orders: for a search over placements."""

from collections.abc import Sequence

from baechi.simulate.pipeline.bounds import shortest_pipeline_s
from baechi.simulate.pipeline.costs import PipelineCoster
from baechi.simulate.pipeline.listing import listed
from baechi.simulate.pipeline.memory import memory_of
from baechi.simulate.pipeline.rules import RULES, limits_of

_TRIES = (("bottom level", -1), ("backward first", 0))
"""Rules, each with the position of its limits: the most in flight, and the fewest."""

_HOPELESS = 1.05
"""If the first rule's step is this many times too long, the other is not tried."""


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
        least_s = shortest_pipeline_s(costs, self._microbatches)
        if least_s > at_most_s:
            return 0, least_s
        limits = list(limits_of(costs, self._microbatches))
        best: tuple[int, float] | None = None
        for rule, position in _TRIES:
            ranks = RULES[rule](costs, self._microbatches)
            schedule = listed(costs, self._microbatches, ranks, limits[position], in_code_order=True)
            step_s = max(least_s, schedule.makespan_s)
            if best is None or best[0] or step_s < best[1]:
                peaks = memory_of(costs, schedule.started).peak_bytes
                pairs = zip(peaks, self._memory, strict=True)
                excess = sum([max(0, peak - limit) for peak, limit in pairs])
                best = min(best or (excess, step_s), (excess, step_s))
            if step_s > _HOPELESS * at_most_s:
                break
        assert best is not None  # there are rules
        return best
