"""The replay of a list is that of an independent one, and never runs too far ahead."""

from dataclasses import replace

import networkx as nx
import pytest
from simulate.pipeline.naive import AHEAD, Naive
from simulate.pipeline.random_pipelines import random_pipeline

from baechi.records import Cluster, Device, HostCosts, LayerGraph, Link, Plan
from baechi.records.pipeline import Pipeline, Task
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


def over_ranks(pipeline: Pipeline) -> Pipeline:
    """The same, where each device belongs to a process of its own."""
    plan = pipeline.plan
    names = {name: f"rank{number}/{name}" for number, name in enumerate(plan.cluster.names)}
    devices = tuple([replace(one, name=names[one.name]) for one in plan.cluster.devices])
    cluster = replace(plan.cluster, devices=devices)
    of = {node: names[place] for node, place in plan.device_of.items()}
    return replace(pipeline, plan=replace(plan, cluster=cluster, device_of=of))


def test_ranks_are_as_one_where_hosts_take_no_time() -> None:
    """Then it makes no difference who issues; a device that one rank has alone is as before."""
    for seed in range(200):
        pipeline = random_pipeline(seed)
        graph = pipeline.plan.graph
        takes = any(graph.costs(name).host_forward_s for name in graph.placed())
        returns = any(graph.costs(name).returned for name in graph.placed())
        serial = pipeline.plan.cluster.reception == "serial"
        ranked = over_ranks(pipeline)
        replay = Replay(costs_of(ranked.plan), pipeline.microbatches, pipeline.order)
        assert shortest_pipeline_s(replay.costs, pipeline.microbatches) <= replay.makespan_s * (1 + 1e-9)
        if not returns and (len(ranked.plan.cluster) == 1 or not (takes or serial)):
            before = Replay(costs_of(pipeline.plan), pipeline.microbatches, pipeline.order)
            waits = any(graph.costs(name).awaited_before for name in graph.placed())
            if len(ranked.plan.cluster) == 1 or not waits:
                assert replay.makespan_s == pytest.approx(before.makespan_s, rel=1e-9), seed


def test_each_rank_has_a_host() -> None:
    """Two layers whose kernels take no time beside their issue: ranks issue side by side."""
    graph: nx.DiGraph[str] = nx.DiGraph(training=False)
    for name in ("a", "b"):
        graph.add_node(name, forward_s=0.01, host_forward_s=1.0)
    graph.add_edge("a", "b", tensor="0", bytes=0)
    order = tuple([Task("forward", microbatch, unit) for microbatch in range(4) for unit in range(2)])
    found = {}
    for names in (("x", "y"), ("rank0/x", "rank1/y")):
        cluster = Cluster(tuple(map(Device, names)), link=Link(0.0, 1e12), launch_s=1.0)
        plan = Plan(LayerGraph.from_networkx(graph), cluster, dict(zip("ab", names, strict=True)))
        replay = Replay(costs_of(plan), 4, order)
        found[names[0]] = replay.makespan_s, replay.host_s
    # a also launches what it sends: 2 s each time. A step begins with the first kernel, 1 s after the host
    assert found["x"] == (pytest.approx(4 * (2 + 1) + 0.01 - 1), pytest.approx(12.0))
    assert found["rank0/x"] == (pytest.approx(4 * 2 + 0.01 - 1), pytest.approx(8.0))
