"""The replay of a list is that of an independent one, and never runs too far ahead."""

from dataclasses import replace

import pytest
from simulate.pipeline.naive import AHEAD, Naive
from simulate.pipeline.random_pipelines import random_pipeline

from baechi.records import HostCosts
from baechi.records.pipeline import Pipeline
from baechi.simulate.pipeline import Replay, costs_of, shortest_pipeline_s


@pytest.mark.parametrize("first", range(0, 600, 50))
def test_random_pipelines(first: int) -> None:
    """The same start and end of every task, in 600 random pipelines; none is below the bound."""
    for seed in range(first, first + 50):
        assert_as_naive(seed, random_pipeline(seed))


def test_tasks_that_start_before_all_is_there() -> None:
    """What their later layers read arrives later: the same, in pipelines of more layers."""
    late = [assert_as_naive(seed, random_pipeline(seed, layers=16, edges=0.3)) for seed in range(120)]
    assert sum(late) > 10


def assert_as_naive(seed: int, pipeline: Pipeline) -> int:
    """How many tasks started so that something arrived on their way."""
    if seed % 2:
        charges = HostCosts(task_s=0.02, transfer_s=0.01, backward_node_s=0.005)
        cluster = replace(pipeline.plan.cluster, host=charges)
        pipeline = replace(pipeline, plan=replace(pipeline.plan, cluster=cluster))
    costs = costs_of(pipeline.plan)
    replay, naive = Replay(costs, pipeline.microbatches, pipeline.order), Naive(pipeline)
    assert replay.makespan_s == pytest.approx(naive.run(), rel=1e-9), seed
    for task in pipeline.order:
        job = replay.jobs[task]
        assert job.start_s == pytest.approx(naive.starts[task], rel=1e-9), (seed, task)
        assert job.end_s == pytest.approx(naive.ends[task], rel=1e-9), (seed, task)
    assert shortest_pipeline_s(costs, pipeline.microbatches) <= replay.makespan_s * (1 + 1e-9), seed
    early = [(job.start_s, job.early or ()) for job in replay.jobs.values()]
    return sum([any([other.end_s > start_s for other in waits]) for start_s, waits in early])


def test_the_host_stays_near() -> None:
    """When a task is issued, fewer than `AHEAD` of its device are issued and not over."""
    for seed in range(50):
        pipeline = random_pipeline(seed)
        replay = Replay(costs_of(pipeline.plan), pipeline.microbatches, pipeline.order)
        for position, task in enumerate(pipeline.order):
            device, now_s = pipeline.units.device(task), replay.issue_s[position]
            before = [other for other in pipeline.order[:position] if pipeline.units.device(other) == device]
            open_ = [other for other in before if replay.jobs[other].end_s > now_s]
            assert len(open_) < AHEAD
