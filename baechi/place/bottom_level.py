"""Orders by bottom level: on every device, the layer with the longest remaining path runs first.

The bottom level of a layer is the longest path from its start to the end of the model, transfers
between the devices that were chosen included (Hu, Operations Research 9(6), 1961; Kwok and Ahmad,
ACM Computing Surveys 31(4), 1999).
"""

from collections.abc import Sequence

from baechi.place.priority import order_by
from baechi.place.problem import Problem


def bottom_level_order(problem: Problem, device_of: Sequence[int]) -> list[int]:
    """Order all layers topologically, the most urgent first."""
    return order_by(problem.followers, [-level for level in bottom_levels(problem, device_of)])


def bottom_levels(problem: Problem, device_of: Sequence[int], *, ordered: bool = True) -> list[float]:
    """The longest path from the start of each layer to the end."""
    indexed = problem.indexed
    levels = [0.0] * len(indexed)
    for layer in reversed(range(len(indexed))):
        here = device_of[indexed.group_of[layer]]
        below = [levels[follower] for follower in indexed.after[layer]] if ordered else []
        for tensor in indexed.makes[layer]:
            for reader in indexed.consumers[tensor]:
                there = device_of[indexed.group_of[reader]]
                travel_s = 0.0 if there == here else problem.travel_s(here, there, indexed.size_bytes[tensor])
                below.append(travel_s + levels[reader])
        levels[layer] = problem.work_s[here][layer] + max(below, default=0.0)
    return levels
