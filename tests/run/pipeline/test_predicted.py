"""Dry runs of pipelines beside what was predicted: steps and peaks, where kernels or launches bound them."""

import pytest
import torch
from architectures import OTHERS, OWN
from run.pipeline.nets import noise, seeded
from run.pipeline.predicted import MICROBATCHES, ORDERS, RATES, timelines
from run.pipeline.witness import cluster_of, measured
from torch import Tensor, nn
from torch.nn import functional as F

import baechi

pytestmark = pytest.mark.default_cases(2)


def conv(given: int, made: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(given, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU())


class UNet(nn.Module):
    """Skips across all stages, whose gradients are slices; buffers; a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.lower, self.lowest = conv(3, 8), conv(8, 16), conv(16, 32)
        self.up, self.upper, self.pool = conv(48, 16), conv(24, 8), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        middle = self.lower(self.pool(high))
        low = self.lowest(self.pool(middle))
        middle = self.up(torch.cat([middle, F.interpolate(low, scale_factor=2.0)], 1))
        made: Tensor = self.upper(torch.cat([high, F.interpolate(middle, scale_factor=2.0)], 1))
        return made.square().mean()


class Scores(nn.Module):
    """A chain with a loss and scores: these stay on their device until all microbatches are over."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(8)])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return {"loss": x.square().mean(), "scores": x}


MODELS = {"u_net": (UNet, (8, 3, 16, 16)), "scores": (Scores, (128, 32))}


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("model", MODELS)
@RATES
@ORDERS
def test_steps_and_peaks(model: str, rate: float, at_most: float, order: str) -> None:
    """Peaks are 0 to 15 % below the predicted."""
    dry, predicted = timelines(*MODELS[model], rate, order)
    assert predicted.makespan_s == pytest.approx(dry.makespan_s, rel=at_most)
    for name in dry.peak_bytes:
        assert dry.peak_bytes[name] <= predicted.peak_bytes[name] <= 1.15 * dry.peak_bytes[name], name


class Values(nn.Module):
    """After each layer, and within a stage, the code asks for a value: the host waits, then goes on there."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(48, 48) for _ in range(7)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
            if not x.isfinite().all():
                x = x.clamp(-1e4, 1e4)
            x = x + x.square().tanh()
        return x.square().mean()


class Asking(nn.Module):
    """Layers that ask for a value inside: the host waits there, and launches the rest when it has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Asks() for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        for turn in range(12):
            x = x @ self.weight if turn % 6 == 0 else x.tanh()
            if turn == 3 and not x.isfinite().all():
                return x
        return x


class Idle(nn.Module):
    """Each block has weights that a step does not use: nothing is added to their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([HalfIdle() for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class HalfIdle(nn.Module):
    """A layer, since it has a weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = (nn.Parameter(torch.randn(64, 64) / 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.used).tanh()


class Homeward(nn.Module):
    """The code asks for the gradient of a view of its input: the host waits for it in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        x.requires_grad = True
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


@pytest.mark.parametrize("kind", [Values, Asking, Idle, Homeward])
@RATES
@ORDERS
def test_steps(kind: type[nn.Module], rate: float, at_most: float, order: str) -> None:
    shape = (16, 48) if kind is Values else (48, 64)
    dry, predicted = timelines(kind, shape, rate, order)
    assert predicted.makespan_s == pytest.approx(dry.makespan_s, rel=at_most)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "devices", "placer", "order", "microbatches"),
    [
        ("detr", 4, "even", "1f1b", MICROBATCHES),
        ("two_branches", 3, "even", "1f1b", MICROBATCHES),
        ("two_branches", 4, "auto", "1f1b", 2),
        ("torch_transformer", 3, "random:1", "gpipe", 2),
    ],
)
def test_steps_of_architectures(name: str, devices: int, placer: str, order: str, microbatches: int) -> None:
    """DETR asks after each layer of its encoder whether all is finite: one microbatch after the other. Of two
    branches a stage reads one later than the other, and starts before that one is there. Torch's encoder
    makes a mask where no function mode sees it: it is sent ahead, and its layers stay in their stages."""
    architecture = next(one for one in (*OWN, *OTHERS) if one.name == name)
    dry, predicted = measured(architecture, cluster_of(devices, 1e9), placer, order, microbatches)
    assert abs(dry[0]) < 0.1 and abs(predicted[0]) <= 2


class Queries(nn.Module):
    """A view of a weight is made while the code is in a stage that has nothing to do with it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.memory, self.last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.queries = nn.Parameter(torch.randn(32) / 8)
        self.own = nn.Sequential(*[nn.Linear(32, 32) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        memory = self.memory(self.before(x))
        queries = self.own(self.queries.unsqueeze(0).repeat(len(x), 1))
        return self.last(memory + queries).square().mean()


def test_a_view_of_a_weight_is_in_the_stage_of_the_weight() -> None:
    """The backward of the stage that the code was in waited for all that reads the view."""
    cluster, net, x = cluster_of(3, 1e9), seeded(Queries), noise(64, 32)
    graph = baechi.profile(net, x, cluster=cluster, training=True, source="estimate", microbatches=2)
    plan = baechi.Plan.from_device_map(
        graph, cluster, {"before": 0, "memory": 1, "own": 1, "queries": 1, "last": 2}
    )
    pipeline = baechi.pipeline(plan, 2, "gpipe")
    dry = baechi.dry_run(net, x, pipeline)
    assert pipeline.timeline.makespan_s == pytest.approx(dry.makespan_s, rel=0.02)


class Forked(nn.Module):
    """Branches on several devices read a large tensor; one device has two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 512)
        self.branches = nn.ModuleList([nn.Linear(512, 4) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).tanh()
        return torch.cat([branch(x) for branch in self.branches]).square().mean()


@RATES
def test_gradients_are_added_up_where_several_stages_send_them(rate: float, at_most: float) -> None:
    """In the stage of what they read; those of one stage, there."""
    cluster, net, x = cluster_of(3, rate), seeded(Forked), noise(64, 4)
    graph = baechi.profile(net, x, cluster=cluster, training=True, source="estimate", microbatches=2)
    branches = {f"branches.{number}": device for number, device in enumerate((1, 2, 2, 0))}
    plan = baechi.Plan.from_device_map(graph, cluster, {"stem": 0, **branches})
    pipeline = baechi.pipeline(plan, 2, "gpipe")
    dry = baechi.dry_run(net, x, pipeline)
    assert pipeline.timeline.makespan_s == pytest.approx(dry.makespan_s, rel=at_most / 10)


class Aside(nn.Module):
    """A layer reads a value with its history, another one without."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(h).square().mean() + self.c(h.detach()).square().mean()


def test_no_gradient_comes_from_a_reader_without_history() -> None:
    """Its stage was taken to send one: some lists then waited for ever in the replay."""
    cluster = baechi.Cluster.virtual(3)
    graph = baechi.profile(
        seeded(Aside), noise(4, 6), cluster=cluster, training=True, source="estimate", microbatches=2
    )
    plan = baechi.Plan.from_device_map(graph, cluster, {"a": 0, "b": 1, "c": 2})
    for timeline in (baechi.pipeline(plan, 2, "gpipe").timeline, plan.timeline):
        back = {span.where for span in timeline.spans if span.phase == "backward" and span.kind == "transfer"}
        assert "cpu:1>cpu:0" in back and "cpu:2>cpu:0" not in back
