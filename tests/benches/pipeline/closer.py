"""A closer time that no order can beat: times are refuted, one after the other.

To be over by some time, of two tasks of a device one must come first if the other, first, leaves too little
for what follows. That is one arc more, so heads and tails grow, and more pairs are decided (immediate
selection: Carlier and Pinson 1989). If at last a task, or a device in turn, comes out too late, no order is
over by that time. The interval between what is refuted and what is not is halved.
"""

from collections import Counter
from collections.abc import Iterator

from baechi.simulate.pipeline.bounds import shortest_pipeline_s
from baechi.simulate.pipeline.costs import PipelineCosts
from benches.pipeline.issued import Frame, Issued

_CLOSE = 5e-4
"""The interval is not halved below this part of the step."""

_MOST_PAIRS = 60_000
"""Pipelines with more pairs of tasks on a device are left to the quick bound: they take seconds."""

_ROUNDING = 1e-9


def closer_bound_s(costs: PipelineCosts, microbatches: int, known_s: float) -> float:
    """A time that no order can beat, whatever the memory; at least `shortest_pipeline_s`.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        known_s: the step of an order.
    """
    least_s = shortest_pipeline_s(costs, microbatches)
    if least_s >= known_s * (1 - _CLOSE) or _pairs(costs, microbatches) > _MOST_PAIRS:
        return least_s
    network = Issued(costs, microbatches)
    too_short_s, possible_s = least_s, known_s
    tried_s = known_s * (1 - _CLOSE)  # most orders are this good
    while possible_s - too_short_s > _CLOSE * known_s * (1 + _ROUNDING):
        if _is_refuted(network, tried_s + costs.lead_s):
            too_short_s = tried_s
        else:
            possible_s = tried_s
        tried_s = (too_short_s + possible_s) / 2
    return too_short_s


def _pairs(costs: PipelineCosts, microbatches: int) -> int:
    count = Counter(costs.units.unit_devices)
    return sum([(microbatches * one) ** 2 for one in count.values()])


def _is_refuted(network: Issued, over_s: float) -> bool:
    """Whether no order is over by a time."""
    added: dict[int, set[int]] = {}
    while True:
        frame = network.frame(added)
        if frame is None or network.least_s(frame) > over_s * (1 + _ROUNDING):
            return True
        decided = list(_decided(network, frame, over_s * (1 + _ROUNDING)))
        if not decided:
            return False
        for first, second in decided:
            added.setdefault(first, set()).add(second)
            issue = network.tasks + first
            added.setdefault(issue, set()).add(network.tasks + second)


def _decided(network: Issued, frame: Frame, over_s: float) -> Iterator[tuple[int, int]]:
    """Pairs of a device's tasks of which the first must come first, though nothing said so yet."""
    heads_s, tails_s, before = frame
    for tasks in network.on[:-1]:
        rests_s = sorted([(-network.own_s[task] - tails_s[task], task) for task in tasks])
        for second in tasks:
            end_s = heads_s[second] + network.own_s[second]
            for rest_s, first in rests_s:  # the longest first
                if end_s - rest_s <= over_s:
                    break
                known = before[second] >> first & 1 or before[first] >> second & 1
                if first != second and not known:
                    yield first, second
