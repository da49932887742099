"""A user's own loop over microbatches: with outputs that stay, the devices work at the same time."""

import copy
from typing import Any

import pytest
import torch
from same import identical
from torch import Tensor, nn
from torch.nn import functional as F

import baechi
from baechi.records import Cluster, Device, Link, Plan

MICROBATCHES = 8
WIDTH = 32


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Chain(nn.Module):
    """Sixteen blocks; the loss is computed inside if there is a target."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(16)])

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x if target is None else F.mse_loss(x, target)


def four_devices(bytes_per_s: float = 3e11) -> Cluster:
    """Slow devices, so that the host and its launches do not count."""
    devices = [Device(f"cpu:{k}", "slow", 1 << 34, 1.0, {"float32": 1e7}, 1e12) for k in range(4)]
    return Cluster(tuple(devices), link=Link(5e-6, bytes_per_s), emulated=True, launch_s=5e-6)


def batches() -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, WIDTH, generator=drawn), torch.randn(4, WIDTH, generator=drawn))
        for _ in range(MICROBATCHES)
    ]


def bound_s(plan: Plan) -> float:
    """All forwards, then all backwards: the first microbatch goes through all devices and links, and the
    slowest device works for the others."""
    total_s = sum(
        span.end_s - span.start_s
        for span in plan.timeline.spans
        if span.kind == "transfer" and not span.where.startswith("host>")
    )
    for phase in ("forward", "backward"):
        work_s = dict.fromkeys(plan.cluster.names, 0.0)
        for span in plan.timeline.spans:
            if span.kind == "compute" and span.phase == phase:
                work_s[span.where] += span.end_s - span.start_s
        total_s += sum(work_s.values()) + (MICROBATCHES - 1) * max(work_s.values())
    return total_s


def loop_s(model: nn.Module, cluster: Cluster, *, inside: bool, inputs_on: str) -> float:
    """All forwards, then all backwards, as users write them."""
    with cluster:
        # a target that is read outside comes from the host: from cpu:0 it would wait for what that does
        given = [(x.to(inputs_on), y.to(inputs_on) if inside else y) for x, y in batches()]
        cluster.emulation.synchronize()
        begun_s = cluster.emulation.now_s
        losses = []
        for x, target in given:
            if inside:
                losses.append(model(x, target))
            else:
                out = model(x)
                losses.append(F.mse_loss(out, target.to(out.device)))
        for loss in losses:
            loss.backward()
        cluster.emulation.synchronize()
        return cluster.emulation.now_s - begun_s


def distributed(model: nn.Module, cluster: Cluster, **more: Any) -> nn.Module:
    sample = batches()[0]
    graph = baechi.profile(model, sample, cluster=cluster, no_split_module_classes=[Block])
    return baechi.assign(model, baechi.place(graph, cluster, "even"), **more)


@pytest.mark.full
@pytest.mark.parametrize("inputs_on", ["cpu", "cpu:0"])
@pytest.mark.parametrize("inside", [True, False], ids=["loss-inside", "loss-outside"])
def test_the_loop_overlaps(inside: bool, inputs_on: str) -> None:
    """Within 2 % of the bound, with the plain loop's gradients; by default it takes half as long again."""
    torch.manual_seed(0)
    plain, cluster = Chain(), four_devices()
    model = distributed(copy.deepcopy(plain), cluster, outputs="device")
    taken_s = loop_s(model, cluster, inside=inside, inputs_on=inputs_on)
    least_s = bound_s(baechi.plan_of(model))
    assert least_s <= taken_s <= 1.02 * least_s

    for x, target in batches():
        F.mse_loss(plain(x), target).backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert identical(one.grad, other.grad)

    model = distributed(copy.deepcopy(plain), cluster)
    assert loop_s(model, cluster, inside=inside, inputs_on=inputs_on) > 1.5 * least_s


def test_slow_links_overlap() -> None:
    """A device computes for the next microbatch while it sends what it made for this one, both ways."""
    cluster = four_devices(2e5)  # a transfer takes a fifth of a forward's share
    torch.manual_seed(0)
    model = distributed(Chain(), cluster, outputs="device")
    least_s = bound_s(baechi.plan_of(model))
    assert least_s <= loop_s(model, cluster, inside=True, inputs_on="cpu") <= 1.02 * least_s
