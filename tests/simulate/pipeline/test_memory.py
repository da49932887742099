"""Bytes of a pipeline: hand-worked, and all given back."""

from dataclasses import replace

import pytest
from records.pipeline.chains import chain, over
from simulate.pipeline.random_pipelines import random_pipeline

from baechi.records import Link, Plan
from baechi.simulate.pipeline import Replay, costs_of, memory_of, ordered
from baechi.simulate.pipeline.memory import needed_bytes


def two_layers(**more: float) -> Plan:
    """Two devices, a tensor of 7 bytes between them, an input of 3."""
    graph = chain([(1.0, 2.0)] * 2)
    graph.edges["x", "l0"]["bytes"], graph.edges["l0", "l1"]["bytes"] = 3, 7
    for name in ("l0", "l1"):
        graph.nodes[name].update(param_bytes=100, grad_bytes=100, saved_bytes=20, temp_bytes=5, **more)
    return over(graph, range(2), Link(0.0, 1e9))


def test_one_after_the_other() -> None:
    """With 2 in flight on the first device, the second backward is the fullest moment."""
    made = ordered(two_layers(), 3, "1f1b")
    assert made.in_flight == {"cpu:0": 2, "cpu:1": 1}
    # weights, gradients that wait, 2 inputs of 3 with 20 saved, the gradient of 7 from the other device, one
    # more gradient and 5 temporary bytes; of the microbatch before, the input of 3, what was sent and its
    # gradient, which the device still uses
    assert made.timeline.peak_bytes["cpu:0"] == 100 + 100 + 2 * (3 + 20) + 7 + 100 + 5 + (3 + 7 + 7)
    assert made.timeline.peak_bytes["cpu:1"] == 100 + 100 + 7 + 20 + 100 + 5 + (7 + 7)


def test_the_optimizer_steps_after() -> None:
    """With Adam its state is always there, and its temporary bytes at the end."""
    plan = two_layers()
    plan.graph.graph["optimizer"] = "adam"
    made = ordered(plan, 2, "1f1b")
    assert made.timeline.peak_bytes["cpu:1"] >= 100 + 200 + 100 + 100


def test_in_flight_is_what_costs() -> None:
    """At the second backward GPipe holds 7 of 8 microbatches, 1F1B 2; and a gradient more is there."""
    plan = two_layers()
    gpipe, one_one = ordered(plan, 8, "gpipe"), ordered(plan, 8, "1f1b")
    between = gpipe.timeline.peak_bytes["cpu:0"] - one_one.timeline.peak_bytes["cpu:0"]
    assert between == (7 - 2) * (20 + 3) + 7


@pytest.mark.parametrize("accumulate", [False, True])
def test_what_is_needed_tells_whether_it_fits(accumulate: bool) -> None:
    """Allocators wait for what is late where a device would be full, so times do not matter for that."""
    too_full = 0
    for seed in range(100):
        pipeline = random_pipeline(seed)
        plan, m = pipeline.plan, pipeline.microbatches
        plan.graph.graph["accumulate"] = accumulate
        for place, name in enumerate(plan.graph.placed()):
            plan.graph.nodes[name].update(
                saved_bytes=10 + place, output_bytes=30 + place, temp_bytes=place, grad_bytes=5, param_bytes=4
            )
        costs = costs_of(plan)
        needed = needed_bytes(costs, pipeline.order)
        for less in (0, 1, 5):  # than is needed
            devices = [
                replace(one, memory_bytes=max(0, size - less))
                for one, size in zip(plan.cluster.devices, needed, strict=True)
            ]
            tight = replace(costs, cluster=replace(plan.cluster, devices=tuple(devices)))
            peaks = memory_of(tight, pipeline.order, Replay(tight, m, pipeline.order)).peak_bytes
            full = [peak > one.memory_bytes for peak, one in zip(peaks, devices, strict=True)]
            assert full == [size > one.memory_bytes for size, one in zip(needed, devices, strict=True)]
            too_full += sum(full)
    assert too_full > 100


@pytest.mark.parametrize("accumulate", [False, True])
def test_all_is_given_back(accumulate: bool) -> None:
    """After the last task a device holds what is always there, and the new gradients."""
    for seed in range(100):
        pipeline = random_pipeline(seed)
        graph = pipeline.plan.graph
        graph.graph["accumulate"] = accumulate
        for place, name in enumerate(graph.placed()):
            graph.nodes[name].update(
                saved_bytes=10 + place, output_bytes=30 + place, temp_bytes=place, grad_bytes=5, param_bytes=4
            )
        costs = costs_of(pipeline.plan)
        replay = Replay(costs, pipeline.microbatches, pipeline.order)
        memory = memory_of(costs, pipeline.order, replay)
        for device, curve in enumerate(memory.curve):
            own = [stage for stage, where in enumerate(costs.units.device_of) if where == device]
            left = sum([costs.bytes.gradients[stage] for stage in own])
            assert curve[-1][1] == costs.bytes.always[device] + left
            assert all(live >= costs.bytes.always[device] for _, live in curve)
            assert memory.peak_bytes[device] >= max([live for _, live in curve])
        assert costs.bytes.always == [
            (4 + 5 * (graph.training and accumulate)) * list(pipeline.plan.device_of.values()).count(device)
            for device in pipeline.plan.cluster.names
        ]
