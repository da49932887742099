"""Dry runs of pipelines beside what was predicted: steps and peaks, where kernels or launches bound them."""

from dataclasses import replace

import pytest
import torch
from run.pipeline.nets import noise, seeded
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi.records import Device

MICROBATCHES = 4


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


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("rate", "at_most"), [(1e9, 0.02), (1e12, 0.05)], ids=["compute", "launches"])
@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_steps_and_peaks(model: str, rate: float, at_most: float, order: str) -> None:
    """On three devices; peaks are 0 to 15 % below the predicted."""
    kind, shape = MODELS[model]
    device = Device("cpu:0", "cpu", 2**34, 1.0, {"float64": rate, "float32": rate}, rate)
    devices = tuple(replace(device, name=f"cpu:{number}") for number in range(3))
    cluster = baechi.Cluster(devices, link=baechi.Link(5e-6, 3e9), emulated=True, launch_s=5e-6)
    net, x = seeded(kind), noise(*shape)
    graph = baechi.profile(
        net, x, cluster=cluster, training=True, source="estimate", microbatches=MICROBATCHES
    )
    pipeline = baechi.pipeline(baechi.place(graph, cluster, "even"), MICROBATCHES, order)  # type: ignore[arg-type]
    dry, predicted = baechi.dry_run(net, x, pipeline), pipeline.timeline
    assert predicted.makespan_s == pytest.approx(dry.makespan_s, rel=at_most)
    for name in cluster.names:
        assert dry.peak_bytes[name] <= predicted.peak_bytes[name] <= 1.15 * dry.peak_bytes[name], name


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
