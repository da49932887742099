"""By which rules list scheduling orders a pipeline, and how many microbatches it allows in flight.

    forward first     what comes next is made early: good where links are slow
    backward first    memory is given back early: 1F1B, eager where limits are higher
    bottom level      the longest way to the end first
    midpoint          the longest way to the end first, less the longest way to it: for stages that come back
    waves             as many microbatches at a time as there are devices: for several runs on a device

No rule is best everywhere; simulating all of them costs little. The best are then improved (`improve`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.ways import ways

Ranks = Callable[[PipelineCosts, int], list[Any]]

_LAST = 2
"""The rank of what nothing waits for but the end: backward of weights, if it is apart."""


def forward_first(costs: PipelineCosts, microbatches: int) -> list[Any]:
    """Forward before backward, the earliest microbatch first. (Weights apart come last in all rules.)"""
    place = _deepest_first(costs)
    return _ranked(costs, microbatches, lambda k, r: (0, k, r), lambda k, s: (1, k, place[s]))


def backward_first(costs: PipelineCosts, microbatches: int) -> list[Any]:
    """Backward before forward, the earliest microbatch first."""
    place = _deepest_first(costs)
    return _ranked(costs, microbatches, lambda k, r: (1, k, r), lambda k, s: (0, k, place[s]))


def waves(costs: PipelineCosts, microbatches: int) -> list[Any]:
    """Backward before forward; a wave of microbatches goes through a run before the next run."""
    place, wave = _deepest_first(costs), _wave(costs)
    return _ranked(
        costs, microbatches, lambda k, r: (1, k // wave, r, k), lambda k, s: (0, k // wave, place[s], k)
    )


def forward_waves(costs: PipelineCosts, microbatches: int) -> list[Any]:
    """Forward before backward, in waves."""
    place, wave = _deepest_first(costs), _wave(costs)
    return _ranked(
        costs, microbatches, lambda k, r: (0, k // wave, r, k), lambda k, s: (1, k // wave, place[s], k)
    )


def bottom_level(costs: PipelineCosts, microbatches: int) -> list[Any]:
    """The longest way to the end first, of which the same units of later microbatches are a part."""
    return [-tail_s for tail_s in ways(costs, microbatches).tails_s]


def midpoint(costs: PipelineCosts, microbatches: int) -> list[Any]:
    """The earliest middle of the time in which a task can run at all: after its head, before its tail."""
    found = ways(costs, microbatches)
    return [head_s - tail_s for head_s, tail_s in zip(found.heads_s, found.tails_s, strict=True)]


RULES: dict[str, Ranks] = {
    "backward first": backward_first,
    "forward first": forward_first,
    "bottom level": bottom_level,
    "midpoint": midpoint,
    "waves": waves,
    "forward waves": forward_waves,
}


def limits_of(costs: PipelineCosts, microbatches: int) -> Iterator[tuple[int, ...]]:
    """Limits in flight that are worth a try, by device: from the fewest on."""
    units, devices = costs.units, range(len(costs.cluster))
    deepest = max([ahead for ahead, _ in units.depths], default=0)
    level = [
        min(
            [d[0] for d, where in zip(units.depths, units.device_of, strict=True) if where == device],
            default=0,
        )
        for device in devices
    ]
    found: dict[tuple[int, ...], None] = {}
    for more in _steps(microbatches):
        for slope in (1, 2):
            found[tuple([min(microbatches, 1 + more + slope * (deepest - at)) for at in level])] = None
        found[(min(microbatches, 1 + more),) * len(devices)] = None
    yield from sorted(found, key=lambda limits: (sum(limits), limits))


def _steps(microbatches: int) -> list[int]:
    steps = [0]
    while steps[-1] < microbatches:
        steps.append(steps[-1] + 1 if steps[-1] < 2 else 2 * steps[-1])
    return steps


def _wave(costs: PipelineCosts) -> int:
    return max(1, len(set(costs.units.device_of)))


def _deepest_first(costs: PipelineCosts) -> list[int]:
    place = [0] * len(costs.units.device_of)
    for number, stage in enumerate(costs.units.backward_order):
        place[stage] = number
    return place


def _ranked(
    costs: PipelineCosts,
    microbatches: int,
    of_run: Callable[[int, int], Any],
    of_stage: Callable[[int, int], Any],
) -> list[Any]:
    runs: Sequence[int] = range(len(costs.units.stage_of_run))
    stages: Sequence[int] = range(len(costs.units.device_of) if costs.units.training else 0)
    whole = costs.units.whole
    ranks: list[Any] = []
    for k in range(microbatches):
        ranks += [of_run(k, run) for run in runs]
        ranks += [of_stage(k, stage) if stage < whole else (_LAST, k, stage) for stage in stages]
    return ranks
