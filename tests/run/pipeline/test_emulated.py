"""Pipelines on the clocks of the emulated cluster, beside what was predicted, and beside dry runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run.pipeline.nets import WHERE, Blocks, noise, seeded
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi import zoo
from baechi.records import Device, HostCosts
from baechi.run.dry.dry_run import dry_run
from baechi.run.pipeline.batch.shares import Told
from baechi.run.pipeline.microbatches import Microbatches

pytestmark = pytest.mark.default_cases(2)

X, Y = noise(6, 6), noise(6, 6, seed=2)
COST_S = 1e-3


def planned(host: HostCosts | None, order: str) -> baechi.Pipeline:
    """Three microbatches over two emulated devices."""
    cluster = replace(baechi.Cluster.virtual(2), host=host)
    graph = baechi.profile(
        seeded(Blocks), (X, Y), cluster=cluster, microbatches=3, training=True, source="estimate"
    )
    return baechi.pipeline(baechi.Plan.from_device_map(graph, cluster, WHERE), 3, order)  # type: ignore[arg-type]


def ran(pipeline: baechi.Pipeline) -> baechi.Timeline:
    """The call on the emulated cluster."""
    model = baechi.distribute(seeded(Blocks), plan=pipeline, loss_weights="rows")
    with pipeline.plan.cluster:
        for _ in range(2):
            model.zero_grad()
            model(X, Y)["loss"].backward()
        return pipeline.plan.cluster.emulation.timeline()


def test_a_pipelines_file_is_taken_where_a_pipeline_is(tmp_path: Path) -> None:
    """As `baechi place --microbatches 3 -o` wrote it."""
    pipeline = planned(None, "gpipe")
    pipeline.save(tmp_path / "pipeline.json")
    for distributed in (
        baechi.assign(seeded(Blocks), str(tmp_path / "pipeline.json")),
        baechi.distribute(seeded(Blocks), plan=tmp_path / "pipeline.json"),
    ):
        with pipeline.plan.cluster:
            assert torch.allclose(distributed(X, Y)["loss"], seeded(Blocks)(X, Y)["loss"])


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
def test_tasks_are_charged(order: str) -> None:
    """Measured and predicted steps grow by each task's time, but for the first: what precedes all kernels."""
    free, charged = planned(None, order), planned(HostCosts(task_s=COST_S), order)
    tasks = len(free.order)
    assert ran(charged).makespan_s - ran(free).makespan_s == pytest.approx((tasks - 1) * COST_S, rel=1e-6)
    grown_s = charged.timeline.makespan_s - free.timeline.makespan_s
    assert grown_s == pytest.approx((tasks - 1) * COST_S, rel=1e-6)


def test_a_dry_run_is_the_run() -> None:
    """The same peaks, and the same step."""
    pipeline = planned(None, "1f1b")
    dry = dry_run(
        seeded(Blocks),
        baechi.Inputs(X, Y),
        pipeline.plan,
        reorder=False,
        microbatches=Microbatches(pipeline, told=Told("rows"), accepts=True),
    )
    measured = ran(pipeline)
    assert dict(dry.peak_bytes) == dict(measured.peak_bytes)
    assert dry.makespan_s == pytest.approx(measured.makespan_s, rel=5e-3)


class Translates(nn.Module):
    """A model of the zoo with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model(source, target).flatten(0, -2), labels.flatten())


@pytest.mark.full
@pytest.mark.parametrize(("flops_per_s", "at_most"), [(1e8, 0.02), (2e9, 0.05)], ids=["compute", "launches"])
def test_steps_are_as_predicted(flops_per_s: float, at_most: float) -> None:
    """The Transformer of the paper on four devices: within 2 %, or 5 % where launches bound it; peaks too."""
    device = Device("cpu:0", "slow", 2**34, 1.0, {"float32": flops_per_s}, 100 * flops_per_s)
    devices = tuple(replace(device, name=f"cpu:{number}") for number in range(4))
    cluster = baechi.Cluster(devices, link=baechi.Link(5e-6, 3e11), emulated=True, launch_s=5e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = zoo.transformer("small", 16)
    labels = torch.randint(0, 9, inputs[1].shape, generator=torch.Generator().manual_seed(1))
    whole, batch = Translates(model).train(), (*inputs, labels)
    graph = baechi.profile(whole, batch, cluster=cluster, training=True, source="estimate", microbatches=4)
    pipeline = baechi.place(graph, cluster, microbatches=4, optimizer="sgd", effort=0)
    baechi.distribute(whole, plan=pipeline, loss_weights="rows")
    with cluster:
        for _ in range(2):
            whole.zero_grad()
            loss = whole(*batch)
            measured = cluster.emulation.timeline()
            loss.backward()
    predicted = pipeline.timeline
    assert measured.makespan_s == pytest.approx(predicted.makespan_s, rel=at_most)
    for name in cluster.names:
        assert measured.peak_bytes[name] <= predicted.peak_bytes[name]


class Rises(nn.Module):
    """Residual blocks, of which each reads a sum, a view of it and one of several outputs of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = Halves()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(8)])

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.halves(x)
        for layer in self.layers:
            x = layer(x * low + high).view(-1, 64) + x.view(-1, 64)
        return x.square().mean()


class Halves(nn.Module):
    """A layer that returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.scale, x - self.scale


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_what_functional_ops_make_is_sent_at_once(order: str) -> None:
    """Else it queues behind what later microbatches send meanwhile, and steps are 6 % longer."""
    slow = Device("cpu:0", "slow", 2**34, 1.0, {"float64": 1e8}, 1e10)
    cluster = baechi.Cluster(
        (slow, replace(slow, name="cpu:1")), link=baechi.Link(5e-6, 5e8), emulated=True, launch_s=5e-6
    )
    model, x = seeded(Rises), noise(256, 64)
    where = {"halves": 0, **{f"layers.{number}": number // 2 % 2 for number in range(8)}}
    graph = baechi.profile(model, x, cluster=cluster, microbatches=4, training=True, source="estimate")
    pipeline = baechi.pipeline(baechi.Plan.from_device_map(graph, cluster, where), 4, order)  # type: ignore[arg-type]
    dry = baechi.dry_run(model, x, pipeline)
    assert dry.makespan_s == pytest.approx(pipeline.timeline.makespan_s, rel=0.01)


class Doubled(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class ByFunction(nn.Module):
    """Two layers, the second of which reads what such a function returns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(Doubled.apply(self.first(x))).square().mean()  # type: ignore[no-untyped-call]


def test_what_a_function_returns_is_sent_once() -> None:
    """What its own code makes is no result yet, and is not sent ahead."""
    cluster = baechi.Cluster.virtual(2)
    model, x = seeded(ByFunction), noise(16, 64)
    graph = baechi.profile(model, x, cluster=cluster, microbatches=4, training=True, source="estimate")
    plan = baechi.Plan.from_device_map(graph, cluster, {"first": 0, "second": 1})
    baechi.distribute(model, plan=baechi.pipeline(plan, 4, "gpipe"), loss_weights="rows")
    with cluster:
        for _ in range(3):
            cluster.emulation.synchronize()
            model(x)
        spans = cluster.emulation.timeline().spans
    assert sum([span.where == f"{cluster.names[0]}>{cluster.names[1]}" for span in spans]) == 4


class Deep(nn.Module):
    """A chain that keeps much for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result.square().mean()


@pytest.mark.full
def test_limits_in_flight_are_kept() -> None:
    """With as much memory as is predicted for 1, 2, 4 and 8 in flight, each runs; fewer take less.

    Devices are slow: where the host bounds the step, all are as fast, and the least memory is taken.
    """
    x, peaks = noise(64, 16), []
    virtual = baechi.Cluster.virtual(3)
    slow = tuple([replace(device, flops_per_s={"float64": 1e7}) for device in virtual.devices])
    where = {f"layers.{number}": number // 2 for number in range(6)}
    for limit in (1, 2, 4, 8):
        cluster = replace(virtual, devices=slow)
        graph = baechi.profile(
            seeded(Deep), x, cluster=cluster, microbatches=8, training=True, source="estimate"
        )
        plan = baechi.Plan.from_device_map(graph, cluster, where)
        limits = dict.fromkeys(cluster.names, limit)
        pipeline = baechi.pipeline(plan, 8, "auto", limits=limits)
        assert max(pipeline.in_flight.values()) <= limit
        predicted = pipeline.timeline.peak_bytes
        full = cluster.with_memory({name: predicted[name] for name in cluster.names})
        model = baechi.distribute(
            seeded(Deep), plan=pipeline, cluster=replace(full, emulated=True), loss_weights="rows"
        )
        with baechi.plan_of(model).cluster:
            for _ in range(2):
                model.zero_grad()
                model(x).backward()
        peaks.append(predicted[cluster.names[0]])
    assert peaks == sorted(peaks) and peaks[0] < peaks[-1]
