"""Which target takes how much, so that all is over as early as possible.

All targets that work to the end should end together, at T. A target that is free at f and takes p seconds for
a full chunk does so many full chunks until T, and then a part of one:

    fast  |=======|=======|=======|==|        T is the least for which the parts add up to what is left;
    slow      f |==================|==|       who cannot complete one item until T gets nothing
                                      T

That is earliest finish time of list scheduling (as m-ETF has it), with chunks that may be cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baechi.dispatch.schedulers.pace import Pace

_STEPS = 60
_WORTH = 0.97
"""Several targets share what is left if they need at most this part of the time of the best one alone; paces
are not known better: targets that end together bring their results over one link."""
_PROBE = 32
"""A target of unknown speed first gets this part of what is left."""


@dataclass(frozen=True)
class Runner:
    """A target, for this choice.

    Args:
        name: its name.
        batch_size: the most items of a chunk.
        free_s: when it has done what it has.
        pace: its pace.
        takes: whether it may take a chunk now.
        in_flight: chunks that it has.
    """

    name: str
    batch_size: int
    free_s: float
    pace: Pace
    takes: bool
    in_flight: int


def earliest(runners: Sequence[Runner], left: int) -> tuple[str, int] | None:
    """The target that takes a chunk now, and its items."""
    known = [runner for runner in runners if runner.pace]
    for runner in runners:
        if not runner.pace and not runner.in_flight and runner.takes:
            if not known or left >= _PROBE * runner.batch_size or left // _PROBE >= 1:
                return runner.name, min(runner.batch_size, max(1, left // _PROBE))
    if not known:
        return None
    parts = _parts(known, left)
    for runner in known:
        if runner.takes and parts[runner.name]:
            return runner.name, min(runner.batch_size, parts[runner.name])
    return None


def _parts(runners: Sequence[Runner], left: int) -> Mapping[str, int]:
    """How many items each target takes of what is left."""
    best = min(runners, key=lambda runner: _alone_s(runner, left))
    begin_s = low_s = min([runner.free_s for runner in runners])
    high_s = alone_s = _alone_s(best, left)
    for _ in range(_STEPS):
        middle_s = (low_s + high_s) / 2
        enough = sum([_items_until(runner, middle_s, left) for runner in runners]) >= left
        low_s, high_s = (low_s, middle_s) if enough else (middle_s, high_s)
    parts = dict.fromkeys([runner.name for runner in runners], 0)
    if high_s - begin_s > _WORTH * (alone_s - begin_s):
        return {**parts, best.name: left}
    for runner in sorted(runners, key=_seconds_per_item):  # what rounding adds is taken off the slowest
        parts[runner.name] = min(left, _items_until(runner, high_s, left))
        left -= parts[runner.name]
    parts[best.name] += left  # what rounding down leaves
    return parts


def _seconds_per_item(runner: Runner) -> float:
    return runner.pace.seconds(runner.batch_size) / runner.batch_size


def _alone_s(runner: Runner, left: int) -> float:
    chunks, rest = divmod(left, runner.batch_size)
    rest_s = runner.pace.seconds(rest) if rest else 0.0
    return runner.free_s + chunks * runner.pace.seconds(runner.batch_size) + rest_s


def _items_until(runner: Runner, end_s: float, most: int) -> int:
    """The items that a target completes until a time."""
    span_s = end_s - runner.free_s
    if span_s <= 0:
        return 0
    full_s = runner.pace.seconds(runner.batch_size)
    chunks = (
        most // runner.batch_size if full_s <= 0 else min(int(span_s / full_s), most // runner.batch_size)
    )
    items = chunks * runner.batch_size
    rest = min(runner.batch_size, most - items)
    return items + runner.pace.items_in(span_s - chunks * full_s, rest)
