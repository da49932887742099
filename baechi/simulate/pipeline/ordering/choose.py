"""The order of a pipeline: those of the literature and those of list scheduling, the best by simulation."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from baechi.errors import PlanError
from baechi.order.pipeline import TEXTBOOK, Textbook, textbook_lines
from baechi.records.pipeline import Task
from baechi.records.pipeline.merge import merged
from baechi.simulate.pipeline.bounds import shortest_pipeline_s
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.list_scheduler import Listed
from baechi.simulate.pipeline.memory import memory_of, needed_bytes
from baechi.simulate.pipeline.replay import Replay
from baechi.simulate.pipeline.rules import RULES, backward_first, limits_of

_CLOSE = 1e-3
"""Of two orders whose steps differ by less than this part, the one with less memory is better."""

_ROUNDING = 1e-9
"""Steps that differ by less are the same, summed in another order."""

_MOST_TASKS, _FEWEST = 40_000, 2
"""So many tasks are scheduled in all, if that leaves each rule at least so many limits."""

_MOST_ORDERED = 4000
"""If a placement has fewer tasks, the next one is ordered, too."""

_NEVER_S = float("inf")

_Schedule = tuple[str, tuple[int, ...], Listed]
"""A rule, limits in flight, and what list scheduling makes of them."""


@dataclass(frozen=True)
class Tried:
    """An order with its predicted step.

    Args:
        rule: how it was made.
        limits: by device, the microbatches that it allowed in flight; none for orders of the literature.
        order: one list for the host.
        step_s: the predicted step.
        peak_bytes: by device.
        fits: whether all peaks fit.
    """

    rule: str
    limits: tuple[int, ...]
    order: tuple[Task, ...]
    step_s: float
    peak_bytes: tuple[int, ...]
    fits: bool


def textbook(costs: PipelineCosts, microbatches: int, name: Textbook) -> Tried:
    """An order of the literature. Where its lists contradict each other, they are ranks and no order."""
    devices = len(costs.cluster)
    lines = textbook_lines(costs.units, devices, microbatches, name)
    no_limits, ranks = [microbatches] * devices, backward_first(costs, microbatches)
    strict = Listed(costs, microbatches, ranks, no_limits, lines)
    order = _issued(costs, microbatches, strict) if strict.is_complete else None
    if order is None:
        for line in lines:
            for place, task in enumerate(line):
                ranks[costs.units.number(task)] = (place,)
        order = tuple(Listed(costs, microbatches, ranks, no_limits, in_code_order=True).start_s)
    return evaluated(costs, microbatches, name, (), order)


def all_tried(
    costs: PipelineCosts,
    microbatches: int,
    most: Sequence[int] | None = None,
    *,
    quick: bool = False,
    known_s: float = _NEVER_S,
    known: Sequence[Tried] = (),
) -> list[Tried]:
    """Every order that is worth a try, those of the literature first.

    Args:
        costs: of the pipeline.
        microbatches: how many.
        most: by device, the most microbatches in flight.
        quick: whether schedules are replayed in the order of their steps, and those that do not fit not at
            all: their steps are those of list scheduling.
        known_s: what is quick is to be faster than.
        known: orders that were evaluated before.

    Returns:
        The orders; of quick ones, until the next schedule is no better.
    """
    before = {(tried.rule, tried.limits): tried for tried in known if tried.fits}
    found = [before.get((name, ())) or textbook(costs, microbatches, name) for name in TEXTBOOK]
    schedules: Iterable[_Schedule] = _schedules(costs, microbatches, most)
    if quick:
        schedules = sorted(schedules, key=lambda one: (one[2].step_s, one[2].makespan_s))
    for rule, limits, schedule in schedules:
        if quick and schedule.step_s >= min([known_s, *[tried.step_s for tried in found if tried.fits]]):
            break
        if (rule, limits) in before:
            found.append(before[rule, limits])
            continue
        order = _issued(costs, microbatches, schedule)
        if order is None:
            ranks = RULES[rule](costs, microbatches)
            order = tuple(Listed(costs, microbatches, ranks, limits, in_code_order=True).start_s)
        peaks = tuple(needed_bytes(costs, order)) if quick else ()
        if quick and not _fit(costs, peaks):
            found.append(Tried(rule, limits, order, schedule.step_s, peaks, fits=False))
        else:
            found.append(evaluated(costs, microbatches, rule, limits, order))
    return found if any([tried.fits for tried in found]) else [*found, *_in_memory(costs, microbatches)]


def best_of(found: Sequence[Tried]) -> Tried:
    """The fastest that fits; of nearly equal ones that with the least memory. If none fits, the smallest."""
    fitting = [tried for tried in found if tried.fits]
    if not fitting:
        return min(found, key=lambda tried: (max(tried.peak_bytes), tried.step_s))
    fastest_s = min([tried.step_s for tried in fitting])
    known = [tried.step_s for tried in fitting if tried.rule in TEXTBOOK]  # the choice is never behind these
    most_s = min([fastest_s * (1 + _CLOSE), *[step_s * (1 + _ROUNDING) for step_s in known]])
    close = [tried for tried in fitting if tried.step_s <= most_s]
    return min(close, key=lambda tried: (sum(tried.peak_bytes), tried.step_s))


def fastest_of(costs: Sequence[PipelineCosts], microbatches: int, *, quick: bool) -> tuple[int, list[Tried]]:
    """Which of some placements has the fastest order that fits, and its orders.

    Those after the first have only their promising orders tried, until one of these is better.
    """
    place, tried = 0, all_tried(costs[0], microbatches, quick=quick)
    for number, one in enumerate(costs[1:], 1):
        known = best_of(tried)
        if len(known.order) > _MOST_ORDERED or shortest_pipeline_s(one, microbatches) >= known.step_s:
            continue
        known_s = known.step_s if known.fits else _NEVER_S
        orders = all_tried(one, microbatches, quick=True, known_s=known_s)
        if _rank(best_of(orders)) < _rank(known):
            place, tried = number, orders if quick else all_tried(one, microbatches, known=orders)
    return place, tried


def evaluated(
    costs: PipelineCosts, microbatches: int, rule: str, limits: tuple[int, ...], order: Sequence[Task]
) -> Tried:
    """Simulate an order."""
    replay = Replay(costs, microbatches, order)
    peaks = tuple(memory_of(costs, order, replay).peak_bytes)
    return Tried(rule, limits, tuple(order), replay.makespan_s, peaks, _fit(costs, peaks))


def _fit(costs: PipelineCosts, peak_bytes: Sequence[int]) -> bool:
    limit_bytes = [device.memory_bytes for device in costs.cluster.devices]
    return all([peak <= limit for peak, limit in zip(peak_bytes, limit_bytes, strict=True)])


def _schedules(
    costs: PipelineCosts, microbatches: int, most_live: Sequence[int] | None
) -> Iterator[_Schedule]:
    """Different schedules by every rule under every limit; of many limits, some, evenly spread."""
    limits = list(limits_of(costs, microbatches))
    if most_live is not None:
        kept = [tuple([min(pair) for pair in zip(some, most_live, strict=True)]) for some in limits]
        limits = list(dict.fromkeys(kept))
    tasks = len(list(costs.units.tasks(microbatches)))
    most = max(_FEWEST, _MOST_TASKS // (len(RULES) * max(1, tasks)))
    step = -(-len(limits) // most)
    seen: set[tuple[Task, ...]] = set()
    for rule, ranks_of in RULES.items():
        ranks = ranks_of(costs, microbatches)
        for allowed in limits[::-step][::-1]:  # the highest is among them
            schedule = Listed(costs, microbatches, ranks, allowed)
            started = tuple(schedule.start_s)
            if started not in seen:
                seen.add(started)
                yield rule, allowed, schedule


def _in_memory(costs: PipelineCosts, microbatches: int) -> Iterator[Tried]:
    """As many microbatches in flight as there is memory for: of many tasks, not every limit was tried."""
    rule, limits = "backward first", list(limits_of(costs, microbatches))
    ranks, fewest, too_many = RULES[rule](costs, microbatches), -1, len(limits)
    while too_many - fewest > 1:
        middle = (fewest + too_many) // 2
        order = tuple(Listed(costs, microbatches, ranks, limits[middle], in_code_order=True).start_s)
        tried = evaluated(costs, microbatches, rule, limits[middle], order)
        fewest, too_many = (middle, too_many) if tried.fits else (fewest, middle)
        yield tried


def _issued(costs: PipelineCosts, microbatches: int, schedule: Listed) -> tuple[Task, ...] | None:
    """A schedule as one list for the host; None if the code comes to the tasks in another order."""
    names = costs.cluster.names
    try:
        return merged(costs.units, names, microbatches, schedule.lines, schedule.start_s)
    except PlanError:
        return None


def _rank(tried: Tried) -> tuple[bool, float]:
    return not tried.fits, tried.step_s
