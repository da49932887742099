"""A dry run beside the same steps with values: seconds and bytes are equal, and the model is left alone."""

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from architectures import HELD_IN, OTHERS, OWN, Architecture
from matrix import in_turn_by_tier, named
from run.dry.steps import OPTIMIZERS, ran
from torch import Tensor, nn

import baechi
from baechi.cost.optimizers import OPTIMIZERS as OPTIMIZERS_BY_NAME
from baechi.run.dry.loop import losses_of

pytestmark = pytest.mark.default_cases(2)

KIND = "A100-80GB"
BY_VALUES = {"experts", "branching"}
"""They decide by activations."""

SAMPLE = [case for case in [*HELD_IN, *OWN[::2], *OTHERS[::8]] if case.name not in BY_VALUES]


def planned(
    model: nn.Module, inputs: Any, devices: int, placer: str, *, training: bool, memory: str = "64GiB"
) -> baechi.Plan:
    free = baechi.Cluster.virtual(devices, memory=memory, like=KIND)
    cluster = replace(free, host=baechi.HostCosts.usual())
    graph = baechi.profile(model, inputs, cluster=cluster, training=training, source="estimate")
    return baechi.place(graph, cluster, placer)


def dry(model: nn.Module, inputs: Any, plan: baechi.Plan, way: str) -> baechi.Timeline:
    model.train(way != "inference")
    optimizer = OPTIMIZERS[way](model.parameters()) if way != "inference" else None
    torch.manual_seed(0)
    return baechi.dry_run(model, inputs, plan, optimizer=optimizer, reorder=True)


@pytest.mark.parametrize(
    ("case", "way"),
    in_turn_by_tier(SAMPLE, ["inference", "sgd", "adam, foreach"]),
    ids=named,
)
def test_as_it_runs(case: Architecture, way: str) -> None:
    """Steps and peaks are those of the same steps with values."""
    inputs = case.inputs()
    devices, placer = (2, "random:1") if len(case.name) % 2 else (3, "m-etf")
    plan = planned(case.build(), inputs, devices, placer, training=way != "inference")
    torch.manual_seed(0)
    real = ran(case.build(), inputs, plan, way)
    found = dry(case.build(), inputs, plan, way)
    assert found.makespan_s == pytest.approx(real.makespan_s, rel=1e-9)
    assert dict(found.peak_bytes) == dict(real.peak_bytes)
    assert found.counters == real.counters  # the host's work among them
    assert found.source == "dry run" and real.source == "measured"


class Decides(nn.Module):
    """Takes a path by its inputs, and by its activations if asked to."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.embedding = nn.Embedding(9, 8)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.first(self.embedding(ids))
        if self.by == "inputs" and bool((ids > 0).all()):
            hidden = self.second(hidden)
        if self.by == "activations" and float(hidden.sum()) > 0:
            hidden = self.second(hidden)
        if self.by == "masks":
            hidden = hidden[ids > 4]
        if self.by == "draws" and torch.rand([]) > 0.5:
            hidden = self.second(hidden)
        return hidden


IDS = torch.arange(1, 9).reshape(2, 4)


@pytest.mark.parametrize("by", ["inputs", "masks", "draws"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_follows_from_inputs_and_seeds_is_known(by: str, seed: int) -> None:
    """A model that decides by its integer inputs, or by a number drawn, takes the path that it takes."""
    torch.manual_seed(0)
    model = Decides(by).train()
    plan = planned(model, (IDS,), 2, "random:1", training=True)
    torch.manual_seed(seed)
    found = baechi.dry_run(model, (IDS,), plan, optimizer="sgd")
    torch.manual_seed(seed)
    real = ran(model, (IDS,), plan, "sgd")
    assert found.makespan_s == pytest.approx(real.makespan_s, rel=1e-9)
    assert dict(found.peak_bytes) == dict(real.peak_bytes)


def test_what_follows_from_activations_is_not() -> None:
    """An error says at which line, and the model is as it was."""
    model = Decides("activations")
    plan = planned(model, (IDS,), 2, "random:1", training=True)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(baechi.DryRunError, match=r"without values.*test_dry_run.py:\d+"):
        baechi.dry_run(model, (IDS,), plan)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "forward" not in vars(model.first)


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 8))


X = torch.ones(16, 64)


def test_the_model_is_left_alone() -> None:
    """Weights, gradients, buffers, attributes, generators, hooks and the training flag are as they were."""
    model = build()
    torch.autograd.backward(losses_of(model(X)))
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("hook"))
    plan = planned(model, (X,), 2, "random:1", training=True)
    calls.clear()
    model.eval()
    weights = {
        name: (weight, weight.data_ptr(), weight.clone()) for name, weight in model.state_dict().items()
    }
    grads = [parameter.grad for parameter in model.parameters()]
    tables = [sorted(vars(module)) for module in model.modules()]
    torch.manual_seed(3)
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    baechi.dry_run(model, (X,), plan, optimizer="adam")
    assert calls == ["hook", "hook"]  # the model's own hooks run, as in a run
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert not model.training
    assert [parameter.grad for parameter in model.parameters()] == grads
    assert [sorted(vars(module)) for module in model.modules()] == tables
    for name, weight in model.state_dict().items():
        assert weight.data_ptr() == weights[name][1] and torch.equal(weight, weights[name][2])
    baechi.assign(model, plan)  # and it can be distributed


def test_on_meta() -> None:
    """A model without memory takes what it takes with memory."""
    plan = planned(build(), (X,), 2, "random:1", training=True)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 8))
    here = baechi.dry_run(build(), (X,), plan, optimizer="adam")
    there = baechi.dry_run(model, (X.to("meta"),), plan, optimizer="adam")
    assert (there.makespan_s, there.peak_bytes) == (here.makespan_s, here.peak_bytes)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_device_that_is_too_small() -> None:
    """Its peak is above its memory, by as much as is short."""
    plan = planned(build(), (X,), 2, "random:1", training=True)
    roomy = baechi.dry_run(build(), (X,), plan, optimizer="adam")
    tight = tuple([type(d)(**{**d.body(), "memory_bytes": 1000}) for d in plan.cluster.devices])
    cluster = baechi.Cluster(tight, link=plan.cluster.link, emulated=True)
    found = baechi.dry_run(
        build(), (X,), baechi.Plan(plan.graph, cluster, plan.device_of, plan.order), optimizer="adam"
    )
    assert found.peak_bytes == roomy.peak_bytes


def test_inside_of_a_cluster() -> None:
    """A cluster that is emulated meanwhile is left as it was: its clock, its tensors, its devices' names."""
    plan = planned(build(), (X,), 2, "random:1", training=True)
    outside = baechi.dry_run(build(), (X,), plan, optimizer="adam")
    cluster = baechi.Cluster.virtual(2)
    with cluster:
        here = X.to("cpu:1")
        now_s, live_bytes = cluster.emulation.now_s, cluster.emulation.live_bytes
        inside = baechi.dry_run(build(), (X,), plan, optimizer="adam")
        assert (cluster.emulation.now_s, cluster.emulation.live_bytes) == (now_s, live_bytes)
        assert str(here.device) == "cpu:1" and str((here + 1).device) == "cpu:1"
    assert inside == outside
    assert "cpu:" not in str(X.device)


def test_a_cluster_to_plan_for() -> None:
    """A plan for devices that are not here runs dry on their emulated twins."""
    cluster = baechi.Cluster.uniform(2, like=KIND)
    graph = baechi.profile(build(), (X,), cluster=cluster, training=True, source="estimate")
    found = baechi.dry_run(build(), (X,), baechi.place(graph, cluster, "m-etf"), optimizer="sgd")
    assert set(found.peak_bytes) == {"device:0", "device:1"} and found.makespan_s > 0


def test_gradients_that_are_added_up() -> None:
    """They are there during forward, too, so that peaks are higher by as much."""
    cluster = baechi.Cluster.virtual(1)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    x = torch.ones(1, 256)
    peaks = []
    for accumulate in (False, True):
        graph = baechi.profile(model, (x,), cluster=cluster, accumulate=accumulate, source="estimate")
        plan = baechi.place(graph, cluster, "single")
        peaks.append(baechi.dry_run(model, (x,), plan).peak_bytes["cpu:0"])
    weight_bytes = 256 * 257 * 4
    assert peaks[1] - peaks[0] == pytest.approx(weight_bytes, rel=0.05)


def test_an_optimizer_of_the_model() -> None:
    """It is neither stepped nor given state; its options count."""
    model = build()
    plan = planned(model, (X,), 1, "single", training=True)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def peak(optimizer: str | torch.optim.Optimizer) -> int:
        return baechi.dry_run(model, (X,), plan, optimizer=optimizer).peak_bytes["cpu:0"]

    assert peak(momentum) > peak(plain)
    assert peak(momentum) == peak("momentum")
    assert not plain.state and not momentum.state


@pytest.mark.parametrize(
    "kind", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "ASGD"]
)
def test_objects_of_torchs_optimizers(kind: str) -> None:
    """They run dry; those that have a name, as by their name."""
    model = build()
    plan = planned(model, (X,), 1, "single", training=True)
    found = baechi.dry_run(model, (X,), plan, optimizer=getattr(torch.optim, kind)(model.parameters()))
    assert found.source == "dry run"
    if kind.lower() in OPTIMIZERS_BY_NAME:
        named = baechi.dry_run(model, (X,), plan, optimizer=kind.lower())
        assert (found.makespan_s, found.peak_bytes) == (named.makespan_s, named.peak_bytes)


def test_bad_input() -> None:
    """Each error says what is wrong."""
    model = build()
    plan = planned(model, (X,), 2, "random:1", training=True)
    with pytest.raises(ValueError, match="steps is 0"):
        baechi.dry_run(model, (X,), plan, steps=0)
    with pytest.raises(ValueError, match="optimizer 'adamm' is unknown"):
        baechi.dry_run(model, (X,), plan, optimizer="adamm")
    with pytest.raises(baechi.DryRunError, match="does not run without values"):
        baechi.dry_run(model, (torch.ones(3, 5),), plan)
    with pytest.raises(baechi.PlanError):
        baechi.dry_run(nn.Linear(3, 3), (torch.ones(3, 3),), plan)
    baechi.assign(model, plan)
    with pytest.raises(baechi.BaechiError, match="distributed already"):
        baechi.dry_run(model, (X,), plan)


def test_reserved_memory_is_used_again() -> None:
    """Thirty outputs of 4 MiB, two at a time: they take two segments of 20 MiB, not six."""
    model, batch = nn.Sequential(*[nn.ReLU() for _ in range(30)]).eval(), torch.ones(1024, 1024)
    plan = planned(model, batch, 1, "single", training=False)
    assert dict(dry(model, batch, plan, "inference").reserved_bytes) == {"cpu:0": 2 * 20 * 2**20}
