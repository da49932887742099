"""The simulator beside the run, where the code takes views and torch takes fused paths."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.dry.steps import ran
from torch import Tensor, nn

import baechi


class _Steps(nn.Module):
    """A cell that reads slices of an embedding, one a step."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.cell = nn.GRUCell(64, 32)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.zeros(len(ids), 32)
        for step in self.embedding(ids).unbind(1):
            hidden = self.cell(step, hidden)
        return hidden


class _Chunks(nn.Module):
    """Slices of one projection, read elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(32, 96)
        self.left, self.right = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, values: Tensor) -> Tensor:
        query, key, gate = self.all(values).chunk(3, dim=-1)
        return torch.cat([self.left(query), self.right(key), gate])


class _Attention(nn.Module):
    """Attention that torch computes in one kernel where nothing is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(32, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.after = nn.Linear(32, 32)

    def forward(self, values: Tensor) -> Tensor:
        values = self.before(values)
        attended: Tensor = self.attention(values, values, values, need_weights=False)[0]
        return self.after(attended)


@pytest.mark.parametrize(
    ("build", "batch"),
    [
        (_Steps, torch.arange(40).view(4, 10)),
        (_Chunks, torch.ones(8, 32)),
        (_Attention, torch.ones(4, 16, 32)),
    ],
    ids=["steps", "chunks", "attention"],
)
def test_as_it_runs(build: Callable[[], nn.Module], batch: Tensor) -> None:
    """Steps within 5 %, peaks not below the run's and at most 15 % above, for inference on two devices."""
    torch.manual_seed(0)
    model = build().eval()
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="A100-80GB")
    graph = baechi.profile(model, batch, cluster=cluster, training=False, source="estimate")
    plan = baechi.place(graph, cluster, "random:1")
    assert plan.timeline is not None
    assert len(set(plan.device_of.values())) == 2
    run = baechi.dry_run(model, batch, plan)
    assert run.makespan_s == pytest.approx(plan.timeline.makespan_s, rel=0.05)
    for name in cluster.names:
        assert run.peak_bytes[name] <= plan.timeline.peak_bytes[name] <= 1.15 * run.peak_bytes[name]


def test_each_kernel_of_a_layer_is_bound_by_its_own() -> None:
    """Arithmetic bounds an attention's projections, memory its products of short rows: equal to the digit."""
    torch.manual_seed(0)
    model, batch = _Attention().train(), torch.ones(4, 16, 32)
    rates: dict[str, Any] = {"flops_per_s": {"float32": 4e9}, "bytes_per_s": 1e9}
    devices = tuple([baechi.Device(f"cpu:{number}", "cpu", 2**30, **rates) for number in range(2)])
    cluster = baechi.Cluster(devices, link=baechi.Link(5e-6, 3e9), emulated=True, launch_s=0.0)
    graph = baechi.profile(model, batch, cluster=cluster, training=True, source="estimate")
    plan = baechi.Plan.from_device_map(graph, cluster, {"": 0, "attention": 1})
    run = baechi.dry_run(model, batch, plan)
    assert baechi.simulate(plan).makespan_s == pytest.approx(run.makespan_s, rel=1e-9)


class _Asks(nn.Module):
    """The host asks for values behind a long kernel, and then issues many short ones elsewhere."""

    def __init__(self, ask: Callable[[Tensor], object], *, on_device: bool = True) -> None:
        super().__init__()
        self.ask, self.on_device = ask, on_device
        self.long = nn.Linear(512, 512)
        self.short = nn.ModuleList([nn.Linear(8, 8) for _ in range(10)])

    def forward(self, values: Tensor) -> Tensor:
        left = self.long(values)
        for _ in range(4):
            self.ask(left if self.on_device else torch.ones(2) + torch.ones(2))
        right = values[:4, :8]
        for layer in self.short:
            right = layer(right)
        return left[:4, :8] * right


@pytest.mark.parametrize(
    ("ask", "on_device", "near"),
    [
        (lambda made: float(made.detach().sum()), True, 0.025),
        (lambda made: float(made.sum()), False, 0.01),
        (lambda made: made[made > 0], True, 0.01),
        (lambda made: bool((made == made).all()), True, 0.01),
        (lambda made: made[:1, 0].tolist(), True, 0.15),  # its copy takes the link, too
    ],
    ids=["item", "item on the host", "mask", "condition", "list"],
)
@pytest.mark.parametrize("way", ["inference", "sgd"])
def test_the_host_waits_for_values(
    ask: Callable[[Tensor], object], way: str, near: float, *, on_device: bool
) -> None:
    """What the code calls after it is issued when the values are there."""
    torch.manual_seed(0)
    model, batch = _Asks(ask, on_device=on_device).train(way != "inference"), torch.ones(128, 512)
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="CPU")
    graph = baechi.profile(model, batch, cluster=cluster, source="estimate")
    plan = baechi.Plan.from_device_map(graph, cluster, {"": 1, "long": 0})
    run = ran(model, (batch,), plan, way)
    assert baechi.simulate(plan).makespan_s == pytest.approx(run.makespan_s, rel=near)


class _Idle(nn.Module):
    """A tower of large weights that this batch does not reach, and a variable that is a view of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.start = _Start()
        self.left, self.right, self.idle = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(512, 512)

    def forward(self, values: Tensor) -> Tensor:
        start = self.start(len(values))
        return self.right(self.left(values + start).relu()).relu() * 2


class _Start(nn.Module):
    """Hands out a view of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 64))

    def forward(self, rows: int) -> Tensor:
        return self.weight.expand(rows, -1)


@pytest.mark.parametrize("way", ["inference", "sgd", "adam, foreach"])
def test_weights_of_idle_layers_get_no_gradients(way: str) -> None:
    """Nor optimizer state; a copy of a view of a weight stays as long as the view. Peaks hold."""
    training, batch = way != "inference", torch.ones(64, 64)
    model = _Idle().train(training)
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="CPU")
    graph = baechi.profile(model, batch, cluster=cluster, source="estimate")
    graph.graph["optimizer"] = way.split(",")[0] if training else None
    plan = baechi.Plan.from_device_map(graph, cluster, {"": 1, "start": 0, "idle": 0, "right": 0})
    run = ran(model, (batch,), plan, way)
    said = baechi.simulate(plan)
    for name in cluster.names:
        assert run.peak_bytes[name] <= said.peak_bytes[name] <= 1.15 * run.peak_bytes[name]
