"""A placement by baechi's runtime beside the same as a plain device map: same numbers, copies beside work."""

from typing import Any

import torch
from benches.models.runnable import Runnable
from benches.truth import emulated
from torch import nn

import baechi
from baechi.backend.virtual.devices import VirtualDevices
from baechi.run.binding import binding_of


class InLine(VirtualDevices):
    """Emulated devices that copy on the streams that compute, as `Tensor.to` does."""

    def transfer_streams(self, source: str, target: str) -> tuple[Any, Any]:
        """The streams that compute at both ends."""
        tx, rx = super().transfer_streams(source, target)
        return tx and self.compute_stream(source), rx and self.compute_stream(target)


def naively(model: nn.Module, plan: baechi.Plan) -> nn.Module:
    """Let a model follow a plan's devices as a plain device map would: copies when they are needed."""
    baechi.assign(model, plan, reorder=False)
    binding = binding_of(model)
    assert binding is not None
    binding.runtime.backend = InLine(plan.cluster.names)
    binding.runtime.readers = {}  # nothing is sent before it is needed
    return model


class Towers(nn.Module):
    """Two towers on one stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(512, 512)
        self.left, self.right = (nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        left: torch.Tensor = self.left(x)
        return left * self.right(x)


def test_beside_a_plain_device_map() -> None:
    """The same numbers; there the stem's output leaves when the code asks for it, after the left tower."""
    cluster = baechi.Cluster.virtual(2, like="L4")
    x = torch.randn(256, 512)
    graph = baechi.profile(Towers(), x, cluster=cluster, source="estimate")
    plan = baechi.Plan.from_device_map(graph, cluster, {"": 0, "right": 1})
    runnable = Runnable("towers", Towers, lambda: (x,))
    naive, ours = (emulated(plan, runnable, "sgd", run=run) for run in (naively, baechi.assign))
    assert naive.counters["transfers"] == ours.counters["transfers"]
    assert naive.makespan_s > 1.2 * ours.makespan_s
    torch.manual_seed(0)
    model = Towers()
    expected = model(x)
    assert torch.equal(naively(model, plan)(x), expected)
