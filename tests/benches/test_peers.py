"""The bench of peers: torch's schedules as orders of our tasks, even stretches, and a row of the page."""

import pytest
from records.pipeline.chains import chain

from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph, Link
from baechi.simulate.pipeline import PipelineCoster
from benches.peers.schedules import INTERLEAVED, ZERO_BUBBLE, Schedule, priced
from benches.peers.stretches import by_blocks, by_work

DEVICES, MICROBATCHES = 4, 8
CLUSTER = Cluster.uniform(DEVICES, link=Link(0.0, float("inf")))


def even_chain(layers: int, *, apart: bool) -> LayerGraph:
    """Layers whose forward, backward of inputs and backward of weights take a second each."""
    graph = chain([(1.0, 2.0)] * layers)
    for name in graph.placed():
        graph.nodes[name].update(grad_bytes=8, param_bytes=8, backward_flops=8)
    return graph.noted(weights_apart=apart)


def step_s(schedule: Schedule, layers: int) -> float:
    graph = even_chain(layers, apart=schedule.apart)
    problem, coster = Problem(graph, CLUSTER), PipelineCoster(graph, CLUSTER)
    stretch_of = by_work(problem, coster, DEVICES * schedule.stretches)
    costs = coster([schedule.device_of(one, DEVICES) for one in stretch_of])
    return priced(schedule, costs, stretch_of, MICROBATCHES).step_s


def test_interleaved_takes_what_the_literature_says() -> None:
    """(m + (p - 1) / v)(f + b) for v stretches on a device: eight layers, two on each."""
    assert step_s(INTERLEAVED[0], 8) == pytest.approx((MICROBATCHES + 3 / 2) * 6)


@pytest.mark.parametrize("schedule", ZERO_BUBBLE, ids=lambda one: one.name)
def test_zero_bubble_is_shorter_than_1f1b(schedule: Schedule) -> None:
    """It lies between all work evenly divided and 1F1B: 24 s of a device for each of eight microbatches."""
    assert MICROBATCHES * 6 <= step_s(schedule, 8) < (MICROBATCHES + 3) * 6


def test_a_v_comes_back() -> None:
    """The device that has the first stretch has the last."""
    turning = ZERO_BUBBLE[1]
    assert [turning.device_of(one, 4) for one in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [INTERLEAVED[0].device_of(one, 4) for one in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_stretches() -> None:
    """By work they are equally long; by blocks equally many, with what is beside blocks at both ends."""
    graph = chain([(float(one), 0.0) for one in (1, 1, 1, 1, 4)])
    problem, coster = Problem(graph, CLUSTER), PipelineCoster(graph, CLUSTER)
    assert by_work(problem, coster, 2) == [0, 0, 0, 0, 1]
    assert by_blocks(problem, coster, 2, r"l[1-4]") == [0, 0, 0, 1, 1]
    assert by_blocks(problem, coster, 5, r"l[1-4]") is None
