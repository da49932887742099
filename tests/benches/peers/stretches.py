"""A model in even stretches, as one cuts it by hand: as many blocks in each, or as much work."""

import re
from collections.abc import Sequence

from baechi.place.problem import Problem
from baechi.simulate.pipeline import PipelineCoster


def by_work(problem: Problem, coster: PipelineCoster, count: int) -> list[int]:
    """By node in code order, its stretch, of equal seconds on the mean of the devices.

    Args:
        problem: the graph, with groups that stay together.
        coster: whose nodes are meant.
        count: how many stretches.
    """
    each_s = [
        sum([row[layer] for row in problem.work_s for layer in group]) for group in problem.indexed.members
    ]
    before_s, found, total_s = 0.0, list[int](), sum(each_s)
    for own_s in each_s:
        found.append(min(count - 1, int(count * (before_s + own_s / 2) / total_s)))
        before_s += own_s
    return _by_node(problem, coster, found)


def by_blocks(problem: Problem, coster: PipelineCoster, count: int, block: str) -> list[int] | None:
    """The same of equally many blocks; what is in none goes with the block before, or the first.

    Args:
        problem, coster, count: as `by_work` has them.
        block: what names of blocks match.

    Returns:
        None if there are fewer blocks than stretches.
    """
    names, found, place = problem.indexed.names, list[int](), dict[str, int]()
    for group in problem.indexed.members:
        match = re.match(block, names[min(group)])
        if match:
            place.setdefault(match.group(), len(place))
        found.append(place[match.group()] if match else max(0, len(place) - 1))
    if len(place) < count:
        return None
    return _by_node(problem, coster, [one * count // len(place) for one in found])


def _by_node(problem: Problem, coster: PipelineCoster, of_group: Sequence[int]) -> list[int]:
    where = dict(zip(problem.indexed.names, [of_group[n] for n in problem.indexed.group_of], strict=True))
    return [where[name] for name in coster.placeable.names]
