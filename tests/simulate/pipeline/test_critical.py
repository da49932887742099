"""What the end of a step waits for: found in replays, and worth changing."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from records.pipeline.chains import chain, over
from simulate.pipeline.random_pipelines import random_order, random_pipeline
from simulate.pipeline.shapes import FAST, uneven_towers

from baechi.records import Link, Plan
from baechi.records.pipeline import Task
from baechi.records.pipeline.dependencies import in_flight, order_faults
from baechi.simulate.pipeline import Replay, all_tried, costs_of
from baechi.simulate.pipeline.ordering import critical, moves
from baechi.simulate.pipeline.ordering.critical import busy_before


def forward_of(plan: Plan) -> Replay:
    """Two microbatches, depth first, replayed."""
    order = [Task("forward", microbatch, run) for microbatch in range(2) for run in range(2)]
    order += [Task("backward", microbatch, stage) for microbatch in range(2) for stage in (1, 0)]
    return Replay(costs_of(plan), 2, order)


def test_over_transfers_and_devices() -> None:
    """The second stage is the slow one: all its tasks in turn, and no pair of the first but the last."""
    replay = forward_of(over(chain([(1, 1), (4, 4)]), [0, 1], FAST))
    pairs = [(one, task) for task, one in busy_before(replay).items()]
    second = [
        Task("forward", 0, 1),
        Task("forward", 1, 1),
        Task("backward", 0, 1),
        Task("backward", 1, 1),
    ]
    assert pairs == list(pairwise(second))[::-1]


def test_over_a_queue_of_a_link() -> None:
    """The second tensor waited on the link for the first, so for its maker: no pair comes before."""
    plan = over(chain([(1, 1), (1, 1)]), [0, 1], FAST)
    slow = replace(plan.cluster, links={tuple(plan.cluster.names): Link(5.0, 1e12)})
    replay = forward_of(replace(plan, cluster=slow))
    one, two = [job for job, send, _ in replay.sent if send.source == 0]
    makers = [Task("forward", microbatch, 0) for microbatch in range(2)]
    assert two.start_s == one.end_s > replay.jobs[makers[1]].end_s
    assert makers[1] not in busy_before(replay)
    assert critical._queued(replay)[two] is one and replay.maker_of(one) == makers[0]


def test_tasks_without_duration_keep_their_places() -> None:
    """Several that begin and end at once come in the order of the list, in which one waits for another."""
    pairs = 0
    for seed in range(40):
        plan, chance = random_pipeline(seed).plan, Random(seed)
        costs, order = costs_of(plan), random_order(plan, 3, chance)
        forward_s, backward_s = (
            [one_s * chance.randint(0, 1) for one_s in some_s]
            for some_s in (costs.forward_s, costs.backward_s)
        )
        costs = replace(costs, forward_s=forward_s, backward_s=backward_s)
        place = {task: index for index, task in enumerate(order)}
        replay = Replay(costs, 3, order)
        for later, earlier in busy_before(replay).items():
            assert place[earlier] < place[later]
            pairs += 1
    assert pairs > 20


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_changed_lists_can_run(first: int) -> None:
    """Pairs follow each other without a pause; where the later one can come first, the list can run."""
    changed_lists = 0
    for seed in range(first, first + 20):
        plan, m = random_pipeline(seed).plan, 3
        costs, order = costs_of(plan), random_order(plan, 3, Random(seed))
        replay = Replay(costs, m, order)
        for two, one in busy_before(replay).items():
            assert costs.units.device(one) == costs.units.device(two)
            assert replay.jobs[one].end_s == replay.jobs[two].start_s
            changed = moves._Moves(costs, order).put_before(order, two, one)
            if changed is not None:
                assert changed.index(two) < changed.index(one)
                assert not order_faults(costs.units, plan.cluster.names, m, changed)
                changed_lists += 1
    assert changed_lists > 20


def test_they_shorten_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """In as many tries, towers with two microbatches in flight get shorter than by moves by chance."""
    costs = costs_of(uneven_towers(0))
    found = [tried.order for tried in all_tried(costs, 4, [2] * 8)]
    lists = [order for order in found if max(in_flight(costs.units, 8, order)) == 2]

    def total_s() -> float:
        best = [moves.moved(costs, 4, first, [2] * 8, tries=300, enough_s=0.0) for first in lists]
        return sum([Replay(costs, 4, one).makespan_s for one in best])

    with_them_s = total_s()
    monkeypatch.setattr(moves, "_CRITICAL", 0.0)
    assert with_them_s < 0.99 * total_s()
