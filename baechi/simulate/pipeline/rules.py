"""By which rules list scheduling orders a pipeline, and how many microbatches it allows in flight.

    forward first     what comes next is made early: good where links are slow
    backward first    memory is given back early: 1F1B, eager where limits are higher
    bottom level      the longest way to the end first
    waves             as many microbatches at a time as there are devices: for several runs on a device

No rule is best everywhere; simulating all of them costs little.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from baechi.simulate.pipeline.costs import PipelineCosts

Ranks = Callable[[PipelineCosts, int], list[Any]]


def forward_first(costs: PipelineCosts, microbatches: int) -> list[Any]:
    """Forward before backward, the earliest microbatch first."""
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
    """The earliest microbatch first, of one microbatch backward first, then the longest way to the end."""
    tails, stages = tails_s(costs)
    return _ranked(costs, microbatches, lambda k, r: (k, 1, -tails[r]), lambda k, s: (k, 0, -stages[s]))


RULES: dict[str, Ranks] = {
    "backward first": backward_first,
    "forward first": forward_first,
    "bottom level": bottom_level,
    "waves": waves,
    "forward waves": forward_waves,
}


def limits_of(costs: PipelineCosts, microbatches: int) -> Iterator[tuple[int, ...]]:
    """Limits in flight that are worth a try, by device: from the fewest on.

    Args:
        costs: of the pipeline.
        microbatches: how many.

    Yields:
        As many as devices follow, or twice as many (slow links), and some more; and the same for all devices.
    """
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


def tails_s(costs: PipelineCosts) -> tuple[list[float], list[float]]:
    """The longest way from each run, and from each stage's backward, to the end of its microbatch."""
    units = costs.units
    feeds: list[list[int]] = [[] for _ in costs.backward_s]
    for stage, after in enumerate(costs.backward_after):
        for earlier in after:
            feeds[earlier].append(stage)
    stages = list(costs.backward_s)
    for stage in reversed(units.backward_order):
        ways_s = [send.duration_s + stages[send.readers[0]] for send in costs.returns[stage]]
        stages[stage] += max([*ways_s, *[stages[later] for later in feeds[stage]]], default=0.0)
    followers: list[list[int]] = [[] for _ in costs.forward_s]
    for run, before in enumerate(costs.forward_after):
        for earlier in before:
            followers[earlier].append(run)
    runs = list(costs.forward_s)
    for run in reversed(range(len(runs))):
        ways_s = [
            send.duration_s + max([runs[r] for r in send.readers], default=0.0) for send in costs.sends[run]
        ]
        ways_s += [runs[later] for later in followers[run]]
        if units.training:
            ways_s.append(stages[units.stage_of_run[run]])
        runs[run] += max(ways_s, default=0.0)
    return runs, stages if units.training else [0.0] * len(stages)


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
    ranks: list[Any] = []
    for k in range(microbatches):
        ranks += [of_run(k, run) for run in runs]
        ranks += [of_stage(k, stage) for stage in stages]
    return ranks
