"""Chosen orders: near the bound, never behind the orders of the literature, within memory."""

import math
from dataclasses import replace

import pytest
from records.pipeline.chains import chain, equal_chain, over
from simulate.pipeline.random_pipelines import random_pipeline
from simulate.pipeline.shapes import FAST, SHAPES, folded, skips_over_slow_links

from baechi.errors import PlanError
from baechi.order.pipeline import TEXTBOOK
from baechi.records import Cluster, Device, Link, Plan
from baechi.records.pipeline import Task
from baechi.simulate.pipeline import (
    all_tried,
    best_of,
    costs_of,
    fastest_of,
    ordered,
    shortest_pipeline_s,
    textbook,
)
from baechi.simulate.pipeline.list_scheduler import Listed
from baechi.simulate.pipeline.ordering import choose
from baechi.simulate.pipeline.rules import backward_first

pytestmark = pytest.mark.default_cases(2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("devices", "m"), [(2, 8), (4, 8), (4, 16)])
def test_near_the_bound(shape: str, devices: int, m: int) -> None:
    """Within 1 % of a time that no order can beat, and never behind GPipe, 1F1B and interleaved."""
    plan = SHAPES[shape](devices)
    costs = costs_of(plan)
    made = ordered(plan, m)
    assert made.timeline.makespan_s <= 1.01 * shortest_pipeline_s(costs, m)
    for name in TEXTBOOK:
        assert made.timeline.makespan_s <= ordered(plan, m, name).timeline.makespan_s * (1 + 1e-3)


@pytest.mark.parametrize(("devices", "runs", "m"), [(2, 4, 2), (2, 8, 2), (4, 4, 2)])
def test_skips_over_slow_links(devices: int, runs: int, m: int) -> None:
    """At the bound, since what a stage sends to one device queues there: without, it is 2 to 6 % low."""
    plan = skips_over_slow_links(devices, runs)
    costs, step_s = costs_of(plan), ordered(plan, m).timeline.makespan_s
    assert step_s == pytest.approx(shortest_pipeline_s(costs, m), rel=1e-9)
    assert step_s >= 1.02 * shortest_pipeline_s(costs, m, in_turn=False)


def test_towers_in_the_order_of_the_code() -> None:
    """The code names one tower before the other; its tasks are issued in time for the other's."""
    plan = SHAPES["towers"](8)
    assert ordered(plan, 4).timeline.makespan_s <= 1.01 * shortest_pipeline_s(costs_of(plan), 4)


def test_a_model_that_comes_back() -> None:
    """Within 1 %: here no rule but `midpoint` is, and the literature's best takes 2 % more."""
    plan = folded(4)
    made = ordered(plan, 16)
    assert made.rule == "midpoint"
    assert made.timeline.makespan_s <= 1.01 * shortest_pipeline_s(costs_of(plan), 16)


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (3, 2), (4, 8), (5, 7)])
def test_the_literature_on_equal_stages(p: int, m: int) -> None:
    """Makespan (m + p - 1)(f + b); live m, or min(m, p - s); the bound is the same."""
    plan = equal_chain(p)
    gpipe, one_one = ordered(plan, m, "gpipe"), ordered(plan, m, "1f1b")
    assert gpipe.timeline.makespan_s == one_one.timeline.makespan_s == (m + p - 1) * 3
    assert shortest_pipeline_s(costs_of(plan), m) == (m + p - 1) * 3
    assert list(gpipe.in_flight.values()) == [m] * p
    assert list(one_one.in_flight.values()) == [min(m, p - s) for s in range(p)]


def test_what_follows_the_tasks() -> None:
    """Results are fetched when the last task of their device is over: bounds and schedules know it."""
    m, graph = 16, chain([(1.0, 2.0)] * 4)
    graph.nodes["l3"]["returned"] = {"0": 10**9}
    plan = over(graph, range(4), Link(0.0, 1e9))
    costs, step_s = costs_of(plan), ordered(plan, m).timeline.makespan_s
    assert step_s > (3 + m) * 3 + 9  # 16 seconds, beside the last backwards of three devices
    assert shortest_pipeline_s(costs, m) == pytest.approx(step_s)
    assert Listed(costs, m, backward_first(costs, m), [m] * 4).step_s == pytest.approx(step_s)


@pytest.mark.parametrize(("name", "step_s"), [("gpipe", 39), ("1f1b", 49), ("auto", 39)])
def test_links_make_1f1b_slow(name: str, step_s: float) -> None:
    """Stages of 1 and 2 s, links of 1 s: figures of another simulator, and 1 s for the first input."""
    plan = over(chain([(1.0, 2.0)] * 4), range(4), Link(1.0, float("inf")))
    assert ordered(plan, 8, name).timeline.makespan_s == step_s + 1  # type: ignore[arg-type]


def test_the_fastest_of_some_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with all its orders. Of a second that is no faster, only the literature's are simulated."""
    graph = chain([(1.0 + 0.1 * (n % 3), 2.0) for n in range(8)])
    first = costs_of(over(graph, [0, 1, 2, 3, 3, 2, 1, 0], FAST))
    everything = all_tried(first, 6)
    alone = costs_of(over(graph, [0] * 8, FAST))
    assert fastest_of([alone, first], 6, quick=False) == (1, everything)
    assert shortest_pipeline_s(first, 6) < best_of(everything).step_s  # so its bound does not tell

    simulated, known = list[str](), choose.evaluated
    monkeypatch.setattr(choose, "evaluated", lambda *given: simulated.append(given[2]) or known(*given))
    assert fastest_of([first, first], 6, quick=False) == (0, everything)
    assert simulated[len(everything) :] == list(TEXTBOOK)


def test_no_order_is_simulated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was tried in a first look is not replayed when all orders are, and all are the same."""
    costs = costs_of(SHAPES["towers"](4))
    everything, looked_at = all_tried(costs, 8), all_tried(costs, 8, quick=True)
    replayed, evaluated = [], choose.evaluated
    monkeypatch.setattr(choose, "evaluated", lambda *args: replayed.append(args) or evaluated(*args))
    assert all_tried(costs, 8, known=looked_at) == everything
    assert len(replayed) == len(everything) - len(looked_at)


def test_lists_of_any_graph() -> None:
    """Every order that is tried can run: `ordered` builds the record, which checks it."""
    for seed in range(40):
        plan = random_pipeline(seed).plan
        for name in ("auto", *TEXTBOOK):
            ordered(plan, 3, name)  # type: ignore[arg-type]


def saving(bytes_each: int, memory: int) -> Plan:
    graph = chain([(1.0, 2.0)] * 3)
    for name in graph.placed():
        graph.nodes[name]["saved_bytes"] = bytes_each
    devices = tuple(Device(f"d{n}", memory_bytes=memory) for n in range(3))
    plan = over(graph, range(3))
    where = {name: device.name for name, device in zip(graph.placed(), devices, strict=True)}
    return Plan(plan.graph, Cluster(devices, link=Link(0.0, float("inf"))), where)


def test_memory_decides() -> None:
    """With room for three microbatches 1F1B's order is taken; with room for two, one that is slower."""
    assert ordered(saving(10, 30), 6).timeline.makespan_s == 24
    assert max(ordered(saving(10, 1000), 6).timeline.peak_bytes.values()) == 30  # GPipe takes as long, and 60
    tight = ordered(saving(10, 20), 6)
    assert max(tight.timeline.peak_bytes.values()) <= 20
    assert tight.timeline.makespan_s > 24
    assert max(tight.in_flight.values()) == 2
    assert not next(tried for tried in tight.tried if tried.rule == "gpipe").fits


def test_rounding_does_not_cost_memory() -> None:
    """Orders whose steps differ in the last digit are as fast: the one with less memory is taken."""
    gpipe = replace(textbook(costs_of(saving(10, 1000)), 6, "gpipe"), step_s=24.0, peak_bytes=(60, 60, 60))
    other = replace(gpipe, rule="1f1b", step_s=math.nextafter(24.0, 25.0), peak_bytes=(30, 30, 30))
    assert best_of([gpipe, other]) is other


def test_limits() -> None:
    """A limit is kept by what is chosen; an order of the literature that breaks it is refused."""
    plan = equal_chain(3)
    made = ordered(plan, 6, limits={"cpu:0": 2})
    assert made.in_flight["cpu:0"] <= 2
    with pytest.raises(PlanError, match="its limit is 2"):
        ordered(plan, 6, "gpipe", limits={"cpu:0": 2})


def test_orders_by_hand() -> None:
    """A list, or lists by device; names that there are not are refused."""
    plan = equal_chain(2)
    made = ordered(plan, 2, "1f1b")
    assert ordered(plan, 2, made.order).order == made.order
    lines = {name: made.order_on(name) for name in plan.cluster.names}
    assert ordered(plan, 2, lines).timeline.makespan_s == made.timeline.makespan_s
    with pytest.raises(ValueError, match="no order 'gpip'"):
        ordered(plan, 2, "gpip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names gpu"):
        ordered(plan, 2, {"gpu": [Task("forward", 0, 0)]})
    with pytest.raises(PlanError, match="misses"):
        ordered(plan, 2, made.order[:-1])
    with pytest.raises(PlanError, match=r"position 1 of the order is \('forward', 0\): a task is"):
        ordered(plan, 2, [made.order[0], ("forward", 0)])  # type: ignore[list-item]
    with pytest.raises(PlanError, match="position 0 of the order is 'F00'"):
        ordered(plan, 2, {"cpu:1": ["F00"]})  # type: ignore[list-item]


def test_without_training() -> None:
    """Inference is forwards alone: m + p - 1 of them."""
    plan = over(chain([(1.0, 2.0)] * 3, training=False), range(3))
    assert ordered(plan, 5).timeline.makespan_s == 7


def test_unequal_devices() -> None:
    """Seconds are those of the device's speed."""
    plan = equal_chain(2)
    fast = replace(plan.cluster.devices[1], speed=3.0)
    plan = replace(plan, cluster=replace(plan.cluster, devices=(plan.cluster.devices[0], fast)))
    assert textbook(costs_of(plan), 4, "1f1b").step_s == 4 * 3
