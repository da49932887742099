"""Place when memory is so tight that placers fail: an integer program proposes, the simulator checks.

1. Refuse a model that provably cannot fit (`proof`).
2. If there are few placements, try every one in every order (`exact`), so the answer is certain.
3. Solve the integer program (`integer_program`) with a margin of memory, with a smaller one, and with
   none. If the last one has no solution, no plan exists.
4. Simulate each solution in several orders. If it needs too much memory, change it step by step
   (`repair`). Then solve the program again, with a smaller budget on the devices that were too full.

All limits are counts, not times, so results are reproducible.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf
from random import Random

from baechi.errors import PlacementError
from baechi.place.bottom_level import bottom_levels
from baechi.place.evaluation import Evaluated, Rehearsal
from baechi.place.problem import ANYWHERE, Problem
from baechi.place.tight.bundles import Bundles
from baechi.place.tight.exact import exact
from baechi.place.tight.integer_program import IntegerProgram
from baechi.place.tight.least_bytes import least_bytes
from baechi.place.tight.lifetimes import Lifetimes
from baechi.place.tight.proof import prove
from baechi.place.tight.refusal import none_of_all, none_packed, not_found
from baechi.place.tight.repair import Attempt, Judge, Repair

FEW_PLACEMENTS, FEW_LAYERS, ORDERS = 2_000, 12, 4_000
"""Limits of trying all placements: the number of placements, of layers, and of simulations."""

MARGINS = (1.0, 0.5, 0.0)
"""Fractions of the largest `top_bytes` that the program leaves free, in turn."""

MOST_X = 320
"""The most variables of the program (groups times devices); with more, groups are bundled."""

ESTIMATED, LEAST_ESTIMATES, MOST_ESTIMATES = 400_000, 100, 10_000
"""Estimates of each of two repairs: in all, divided by the number of layers; the least; the most."""

HASTY = 10
"""The factor by which limits are smaller if `thorough` is off."""


def fit(problem: Problem, rehearse: Rehearsal, *, thorough: bool = True) -> Evaluated:
    """Find a placement that fits every device's memory."""
    prove(problem)
    layers = max(1, len(problem.indexed))
    judge = Judge(problem, rehearse)
    for device_of in _plain(problem):
        judge(device_of, range(layers))
    if layers <= FEW_LAYERS and len(problem.cluster) ** len(problem.indexed.members) <= FEW_PLACEMENTS:
        try:
            return exact(problem, rehearse, enough_s=inf, most=ORDERS)
        except PlacementError:
            raise none_of_all(problem, judge.nearest.found) from None
        except ValueError:
            pass  # too many orders to try
    for attempt in _attempts(problem, judge, thorough):
        if not attempt.excess:
            return attempt.found
    raise not_found(problem, judge.nearest.found, judge.asked)


def _attempts(problem: Problem, judge: Judge, thorough: bool) -> Iterator[Attempt]:
    """Simulated placements, one after the other; the caller takes the first that fits."""
    yield judge.nearest
    bundles = Bundles(problem, least_bytes(problem), max(1, MOST_X // len(problem.cluster)))
    for device_of in _packed(problem, bundles, judge):
        for keys in _orders(problem, device_of):
            yield judge(device_of, keys)
    repair = Repair(judge, Lifetimes(problem), Random(0))
    share = min(MOST_ESTIMATES, ESTIMATED // max(1, len(problem.indexed)))
    share = max(LEAST_ESTIMATES, share if thorough else share // HASTY)
    start = judge.nearest
    yield repair.run(start, share)
    short = [max(0, p - m) for p, m in zip(start.found.peak_bytes, problem.memory_bytes, strict=True)]
    less = [memory - missing for memory, missing in zip(problem.memory_bytes, short, strict=True)]
    again = IntegerProgram(problem, bundles, less).solve()
    starts = (
        [judge(again.device_of, keys) for keys in _orders(problem, again.device_of)]
        if again.device_of
        else []
    )
    yield repair.run(min([*starts, start], key=lambda attempt: attempt.excess), share)


def _plain(problem: Problem) -> Iterator[list[int]]:
    """All layers on one device, and a stretch of layers on each by memory; pins are kept."""
    for device in problem.devices:
        yield [device if pin == ANYWHERE else pin for pin in problem.pins]
    sizes = [part.total_bytes for part in problem.group_bytes]
    scale = sum(sizes) / max(1, sum(problem.memory_bytes))
    ends = list(accumulate([scale * memory for memory in problem.memory_bytes]))
    device_of = []
    for end, pin in zip(accumulate(sizes), problem.pins, strict=True):
        stretch = min(bisect_left(ends, end), len(ends) - 1)
        device_of.append(stretch if pin == ANYWHERE else pin)
    yield device_of


def _packed(problem: Problem, bundles: Bundles, judge: Judge) -> Iterator[tuple[int, ...]]:
    """The integer program's placements, with a smaller margin each time."""
    for margin in MARGINS:
        packing = IntegerProgram(problem, bundles, problem.memory_bytes, margin=margin).solve()
        if packing.device_of is not None:
            yield packing.device_of
        elif packing.impossible and not margin and bundles.single:
            raise none_packed(problem, judge.nearest.found)


def _orders(problem: Problem, device_of: Sequence[int]) -> Iterator[list[float]]:
    """Priorities: code order, and the longest remaining path first."""
    yield [float(layer) for layer in range(len(problem.indexed))]
    yield [-level for level in bottom_levels(problem, device_of)]
