"""Orders made better: their schedules are pushed to the end and back, also with some chance.

A task that was begun since its device was idle may keep a more urgent one waiting. Pushed to the end, and
then to the begin again, each task stands where what follows needs it ("double justification": Valls,
Ballestin and Quintanilla, EJOR 2005). Where that gains nothing more, chance moves some tasks before. A draft
that promises a gain is made a list for the host and replayed.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random
from typing import NamedTuple

from baechi.errors import PlanError
from baechi.records.pipeline import Task
from baechi.records.pipeline.merge import merged
from baechi.simulate.pipeline.bounds import closed_s, shortest_pipeline_s
from baechi.simulate.pipeline.costs import PipelineCosts
from baechi.simulate.pipeline.ordering.choose import Tried, best_of, evaluated
from baechi.simulate.pipeline.ordering.network import Draft, Network
from baechi.simulate.pipeline.replay import Replay

_ENOUGH = 1e-3
"""Orders within this part of the bound are good. Of the bound in which transfers do not queue: within a
thousandth of the other one, orders over slow links still gain up to another thousandth."""

_SEEDS = 6
"""So many orders are made better, each by another rule."""

_MOST_TASKS, _MOST_DRAFTS, _FEWEST_DRAFTS = 60_000, 400, 8
"""So many tasks are drafted in all, and so many drafts at most and at least."""

_PATIENCE = 120
"""So many drafts without a gain are the last."""

_MOVED, _FAR = 0.3, (0.02, 0.05, 0.1, 0.3)
"""The part of the tasks that chance moves, and how far, as parts of the step."""


def improved(
    costs: PipelineCosts, microbatches: int, found: Sequence[Tried], most: Sequence[int] | None = None
) -> list[Tried]:
    """Orders that are better than all of some."""
    return _Improvement(costs, microbatches, found).run(most or [microbatches] * len(costs.cluster))


class _Way(NamedTuple):
    """How a schedule is changed.

    Args:
        seed: the position of the order that it comes from.
        back_inserts, forth_inserts: whether tasks are put into gaps on the way to the end, and back.
        keeps_lines: whether the host's list keeps each device's order, or only minds when tasks are due.
        far: how far chance moves tasks before, as a part of the step.
    """

    seed: int
    back_inserts: bool
    forth_inserts: bool
    keeps_lines: bool
    far: float


class _Improvement:
    def __init__(self, costs: PipelineCosts, microbatches: int, found: Sequence[Tried]) -> None:
        self._costs, self._microbatches = costs, microbatches
        self._best, self._better = best_of(found), list[Tried]()
        self._enough_s = shortest_pipeline_s(costs, microbatches, in_turn=False) * (1 + _ENOUGH)
        fitting = [tried for tried in found if tried.fits]
        by_rule: dict[str, Tried] = {}
        for tried in sorted(fitting, key=lambda tried: tried.step_s):
            by_rule.setdefault(tried.rule, tried)
        self._seeds = list(by_rule.values())[:_SEEDS]
        self._drafts: list[Draft] = []
        self._networks: list[Network] = []

    def run(self, most: Sequence[int]) -> list[Tried]:
        if not self._seeds or self._best.step_s <= self._enough_s:
            return []
        networks: dict[tuple[int, ...], Network] = {}
        for seed in self._seeds:
            limits = tuple([min(pair) for pair in zip(seed.limits or most, most, strict=True)])
            if limits not in networks:
                networks[limits] = Network(self._costs, self._microbatches, limits)
            self._networks.append(networks[limits])
            self._drafts.append(self._played(Replay(self._costs, self._microbatches, seed.order)))
        chance, gained = Random(0), 0
        for number, way in enumerate(self._ways(chance)):
            before_s = self._best.step_s
            self._change(way, chance)
            if self._best.step_s < before_s:
                gained = number
            if self._best.step_s <= self._enough_s or number - gained >= _PATIENCE:
                break
        return self._better

    def _ways(self, chance: Random) -> Iterator[_Way]:
        """Every seed without chance in every way; then many, the best seeds more often."""
        places, either = range(len(self._seeds)), (False, True)
        drafts = max(_FEWEST_DRAFTS, min(_MOST_DRAFTS, _MOST_TASKS // len(self._seeds[0].order)))
        known = [_Way(*how, 0.0) for how in product(places, either, either, either)]
        yield from known[:drafts]
        for _ in range(len(known), drafts):
            place = min(chance.choice(places), chance.choice(places))
            back, forth, keeps = chance.choice(either), chance.choice(either), chance.choice(either)
            yield _Way(place, back, forth, keeps, chance.choice(_FAR))

    def _change(self, way: _Way, chance: Random) -> None:
        """A seed's schedule becomes another one if that is no slower."""
        known_s, start_s = self._drafts[way.seed]
        if way.far:
            far_s = way.far * known_s
            start_s = [
                begin_s + far_s * (2 * chance.random() - 1) if chance.random() < _MOVED else begin_s
                for begin_s in start_s
            ]
        network = self._networks[way.seed]
        moves = network.dense, network.inserted
        made = self._closed(
            network, *network.justified(start_s, moves[way.back_inserts], moves[way.forth_inserts])
        )
        if made[0] < self._best.step_s:
            made = self._replayed(made[1], way)
        if made[0] <= known_s:
            self._drafts[way.seed] = made

    def _closed(self, network: Network, last_s: float, start_s: list[float]) -> Draft:
        """A draft with what follows the tasks."""
        device_of, free_s = self._costs.units.unit_devices, [0.0] * len(self._costs.cluster)
        for task, (begin_s, own_s) in enumerate(zip(start_s, network.own_s, strict=True)):
            device = device_of[task % len(device_of)]
            free_s[device] = max(free_s[device], begin_s + own_s)
        return closed_s(self._costs, self._microbatches, last_s, free_s), start_s

    def _replayed(self, start_s: Sequence[float], way: _Way) -> Draft:
        """What becomes of a draft when the host goes through its list; noted if it is the best so far."""
        order = self._order(start_s, way.keeps_lines)
        if order is None:
            return float("inf"), list(start_s)
        replay = Replay(self._costs, self._microbatches, order)
        if replay.makespan_s < self._best.step_s:
            seed = self._seeds[way.seed]
            rule = f"{seed.rule}, improved"
            made = evaluated(self._costs, self._microbatches, rule, seed.limits, order)
            if made.fits:
                self._best = made
                self._better.append(made)
        return self._played(replay)

    def _played(self, replay: Replay) -> Draft:
        number = self._costs.units.number
        start_s = {number(task): job.start_s for task, job in replay.jobs.items()}
        return replay.makespan_s, [start_s[task] for task in range(len(start_s))]

    def _order(self, start_s: Sequence[float], keeps_lines: bool) -> tuple[Task, ...] | None:
        """One list for the host; None if the code contradicts the devices' orders."""
        units, names = self._costs.units, self._costs.cluster.names
        starts = {units.task(number): begin_s for number, begin_s in enumerate(start_s)}
        lines: list[list[Task]] = [[] for _ in names]
        for task in sorted(starts, key=starts.__getitem__):
            lines[units.device(task)].append(task)
        try:
            return merged(units, names, self._microbatches, lines, starts, keeps_lines=keeps_lines)
        except PlanError:
            return None
