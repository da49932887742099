"""Every placer on the graphs of real models, as captured: roomy, tight and unequal devices."""

from dataclasses import replace
from functools import cache

import pytest
from matrix import pairs_by_tier
from place.checker import check
from place.every import EVERY, plan_by

import baechi
from baechi.records import Cluster, LayerGraph
from baechi.zoo import MODELS

pytestmark = pytest.mark.default_cases(2)

KINDS = ("A100-80GB", "L4")
QUICK = EVERY[:-1]


@cache
def graph_of(model: str, training: bool) -> LayerGraph:
    """A small model's graph, with estimated times for both kinds of device."""
    module, inputs = MODELS[model]("small")
    return baechi.profile(module, inputs, cluster=unequal(0), training=training, source="estimate")


def unequal(memory_bytes: int) -> Cluster:
    """Three devices of two kinds; the slower ones have half of the memory and a slow way in."""
    fast, slow = (Cluster.uniform(1, like=kind).devices[0] for kind in KINDS)
    devices = [replace(fast, name="fast", memory_bytes=memory_bytes)]
    devices += [replace(slow, name=f"slow{number}", memory_bytes=memory_bytes // 2) for number in range(2)]
    return Cluster(tuple(devices), link=Cluster.uniform(1, like=KINDS[1]).link)


@cache
def one_device_bytes(model: str, training: bool) -> int:
    """What the model needs on one device."""
    plan = plan_by("single", graph_of(model, training), Cluster.uniform(1))
    return plan.timeline.peak_bytes["device:0"]


@pytest.mark.parametrize(("model", "training", "placer"), pairs_by_tier(list(MODELS), (False, True), QUICK))
def test_roomy(model: str, training: bool, placer: str) -> None:
    """Each device holds the whole model."""
    check(plan_by(placer, graph_of(model, training), Cluster.uniform(2)))


@pytest.mark.parametrize(
    ("model", "training", "placer"), pairs_by_tier(list(MODELS), (True, False), QUICK[1:])
)
def test_tight(model: str, training: bool, placer: str) -> None:
    """No device holds it; three together have half as much again as it needs on one."""
    cluster = Cluster.uniform(3, memory=one_device_bytes(model, training) // 2)
    plan = plan_by(placer, graph_of(model, training), cluster)
    check(plan)
    assert len(plan.devices_used) > 1


@pytest.mark.parametrize(
    ("model", "training", "placer"), pairs_by_tier(list(MODELS), (True, False), QUICK[1:])
)
def test_unequal(model: str, training: bool, placer: str) -> None:
    """Devices of two kinds and sizes, the largest of which holds four fifths of it."""
    cluster = unequal(one_device_bytes(model, training) * 4 // 5)
    check(plan_by(placer, graph_of(model, training), cluster))


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_search(model: str) -> None:
    """`auto` searches within tight memory, and is no worse than what it starts from."""
    cluster = unequal(one_device_bytes(model, True) * 4 // 5)
    graph = graph_of(model, True)
    searched = plan_by("auto:1", graph, cluster)
    check(searched)
    assert searched.timeline.makespan_s <= plan_by("auto:0", graph, cluster).timeline.makespan_s
