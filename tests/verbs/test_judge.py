"""Dry runs judge plans: what does not fit goes back, what the estimate refuses may fit."""

import dataclasses
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi
from baechi.errors import DryRunError, PlacementError
from baechi.place.fullness import excess_bytes, resized
from baechi.records.inputs import Inputs
from baechi.verbs.judge import checked, judged, runner

X = torch.ones(4, 32)


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(32, 32) for _ in range(6)])


def planned(memory: int | str) -> tuple[baechi.LayerGraph, baechi.Cluster]:
    cluster = baechi.Cluster.virtual(2, memory=memory)
    return baechi.profile(stack(), (X,), cluster=cluster, training=True, source="estimate"), cluster


class Said:
    """Dry runs that say what they are told: by how many bytes each device is too full."""

    def __init__(self, *excess: int) -> None:
        self.excess = list(excess)
        self.plans: list[baechi.Plan] = []

    def __call__(self, plan: baechi.Plan) -> baechi.Timeline:
        self.plans.append(plan)
        more = self.excess.pop(0)
        peaks = {d.name: d.memory_bytes + more for d in plan.cluster.devices}
        return dataclasses.replace(plan.timeline, peak_bytes=peaks, source="dry run")


class Budgets:
    """Placing within a budget, which is noted."""

    def __init__(self, graph: baechi.LayerGraph, *refusals: bool) -> None:
        self.graph, self.refusals = graph, list(refusals)
        self.asked: list[int] = []

    def __call__(self, cluster: baechi.Cluster) -> baechi.Plan:
        self.asked.append(cluster.devices[0].memory_bytes)
        if self.refusals and self.refusals.pop(0):
            raise PlacementError("no room", short_bytes={"cpu:0": 1})
        return baechi.place(self.graph, baechi.Cluster.virtual(2), "even")


def test_a_plan_that_fits_is_taken() -> None:
    """Its timeline is that of its dry run."""
    graph, cluster = planned(1000)
    run, place = Said(0), Budgets(graph)
    plan = judged(cluster, place, run)
    assert plan.cluster is cluster and plan.timeline.source == "dry run" and place.asked == [1000]


def test_a_device_that_is_too_full_gets_that_much_less() -> None:
    """And the plan is made again, at most three times."""
    graph, cluster = planned(1000)
    place = Budgets(graph)
    assert judged(cluster, place, Said(100, 50, 0)).timeline.source == "dry run"
    assert place.asked == [1000, 900, 850]
    place = Budgets(graph)
    with pytest.raises(PlacementError, match=r"cpu:0 and cpu:1 by 3 B each"):
        judged(cluster, place, Said(1, 2, 3))
    assert place.asked == [1000, 999, 997]
    with pytest.raises(PlacementError, match=r"cpu:0 and cpu:1 by 7 B each"):
        judged(cluster, Budgets(graph, False, True, True), Said(7))


def test_where_that_leaves_no_plan_all_get_somewhat_less() -> None:
    """The allocator's segments may miss by more than plans differ."""
    graph, cluster = planned(1000)
    place = Budgets(graph, False, True, False)
    assert judged(cluster, place, Said(100, 0)).timeline.source == "dry run"
    assert place.asked == [1000, 900, 975]


def test_what_the_estimate_refuses_may_fit() -> None:
    """A larger budget makes a plan, and the dry run says whether it keeps the memory that there is."""
    graph, cluster = planned(1000)
    place, run = Budgets(graph, True), Said(0)
    plan = judged(cluster, place, run)
    assert place.asked == [1000, 1050] and plan.cluster is cluster
    place = Budgets(graph, True, True, True)
    with pytest.raises(PlacementError, match="no room"):
        judged(cluster, place, Said())
    assert place.asked == [1000, 1050, 1200]


def needs_values(plan: baechi.Plan) -> baechi.Timeline:
    raise DryRunError("the model decides by values")


def test_without_a_dry_run_estimates_stand(caplog: pytest.LogCaptureFixture) -> None:
    """Said in the log; a plan that only a larger budget made is no plan then."""
    graph, cluster = planned(1000)
    with caplog.at_level(logging.INFO):
        plan = judged(cluster, Budgets(graph), needs_values)
    assert plan.timeline.source == "simulated" and "estimates: the model decides by values" in caplog.text
    place = Budgets(graph, True, False)
    with pytest.raises(PlacementError, match="no room"):
        judged(cluster, place, needs_values)
    assert place.asked == [1000, 1050]


def test_a_plan_by_hand_is_checked() -> None:
    """It is taken with its dry run, or refused."""
    graph, cluster = planned("1MiB")
    plan = baechi.place(graph, cluster, "even")
    assert checked(plan, Said(-5)).timeline.source == "dry run"
    with pytest.raises(PlacementError, match="by 5 B"):
        checked(plan, Said(5))


class Chooses(nn.Module):
    """Two paths: by how many inputs there are."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(32, 8), nn.Linear(32, 4096)

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        return self.large(x) if more else self.small(x)


def test_peaks_are_those_of_all_examples() -> None:
    """The timeline is that of the first one."""
    cluster, model = baechi.Cluster.virtual(1), Chooses().eval()
    examples = [Inputs(X), Inputs(X, X)]
    graph = baechi.profile(model, [(X,), (X, X)], cluster=cluster, training=False, source="estimate")
    plan = baechi.place(graph, cluster, "single")
    both = runner(model, examples, None)(plan)
    one, other = (runner(model, [example], None)(plan) for example in examples)
    assert both.makespan_s == one.makespan_s
    assert both.peak_bytes == other.peak_bytes != one.peak_bytes


def test_distribute_verifies_unless_told_otherwise() -> None:
    """`verify=False` leaves the simulated figures."""
    model = baechi.distribute(stack(), X, cluster=baechi.Cluster.virtual(2))
    assert baechi.plan_of(model).timeline.source == "dry run"
    model = baechi.distribute(stack(), X, cluster=baechi.Cluster.virtual(2), verify=False)
    assert baechi.plan_of(model).timeline.source == "simulated"


def test_measured_times_stand() -> None:
    """A graph whose layers were measured keeps its times; the peaks are those of the dry run."""
    graph, cluster = planned("1MiB")
    graph.graph["measured"] = True
    plan = judged(cluster, lambda budget: baechi.place(graph, cluster, "even"), Said(-9))
    simulated = dataclasses.replace(plan, dry=None).timeline
    assert plan.timeline.makespan_s == simulated.makespan_s and plan.timeline.source == "simulated"
    assert plan.timeline.peak_bytes == {"cpu:0": 2**20 - 9, "cpu:1": 2**20 - 9}


def test_gpus_have_room_for_what_is_reserved() -> None:
    """Torch's allocator takes memory in segments; emulated devices are exact."""
    graph, cluster = planned("1MiB")
    gpus = baechi.Cluster.uniform(2, memory="1MiB")
    plan = baechi.place(graph, gpus, "even")
    ran = runner(stack(), [Inputs(X)], "sgd")(plan)
    streams = 3  # compute, and one for each direction of a transfer: each has segments of its own
    assert ran.reserved_bytes == {"device:0": streams * 2 * 2**20, "device:1": streams * 2 * 2**20}
    assert all(0 < size < 2**20 for size in ran.peak_bytes.values())
    assert excess_bytes(dataclasses.replace(plan, dry=ran)) == {"device:0": 5 * 2**20, "device:1": 5 * 2**20}
    assert judged(
        cluster, lambda budget: baechi.place(graph, budget, "even"), runner(stack(), [Inputs(X)], "sgd")
    )
    roomy = baechi.Cluster.uniform(2, memory="6MiB")
    assert judged(
        roomy, lambda budget: baechi.place(graph, budget, "even"), runner(stack(), [Inputs(X)], "sgd")
    )


def test_resized() -> None:
    """A budget is never below nothing."""
    cluster = baechi.Cluster.virtual(2, memory=100)
    assert [d.memory_bytes for d in resized(cluster, {"cpu:0": -300, "cpu:1": 5}).devices] == [0, 105]
