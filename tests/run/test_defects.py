"""What was wrong with calls, training and memory in the first implementation; numbers as in the reference.

R1 to R4 are beside what launches (`launch/`), R5 to R8 and R14 beside the step (`step/`).
"""

from typing import Any

import pytest
import torch
from order.interleaved import distribute, layers_on
from run.launch.chains import EVERY_WAY, ORDER, WHERE, Net, chains, forced, linear, two_chains, values
from run.launched import launched_on
from torch import Tensor, nn

import baechi


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r9_keyword_arguments(reorder: Any) -> None:
    """R9: a layer takes keyword arguments, tensors among them, and those travel as well."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((8,), 0.5))

        def forward(self, x: Tensor, *, by: Tensor, options: dict[str, Any]) -> Tensor:
            return x * self.weight * by + options["shift"][0] * options["times"]

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.a(input=x)
        result: Tensor = self.c(h, by=self.b(x), options={"shift": [h], "times": 3})
        return result

    def build() -> Net:
        return Net(code, a=linear(), b=linear(), c=Scaled())

    plain, model = build(), build()
    with distribute(model, values(), WHERE, ORDER, reorder=reorder):
        assert torch.equal(model(values()), plain(values()))
    assert forced(model) == []


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r10_gradients_are_those_of_the_loss(reorder: Any) -> None:
    """R10: gradients are the plain model's, bit for bit, whatever the loss is."""
    plain, model = chains(), chains()
    cluster = distribute(model, values(), WHERE, ORDER, reorder=reorder)
    (plain(values()).pow(2).sum() * 7).backward()
    with cluster:
        (model(values()).pow(2).sum() * 7).backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r11_inference(reorder: Any) -> None:
    """R11: a model trained on several devices is evaluated there, too, under every way to turn off grad."""
    plain, model = chains().eval(), chains().eval()
    cluster = distribute(model, values(), WHERE, ORDER, reorder=reorder)
    with cluster:
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                one, other = plain(values()), model(values())
            assert torch.equal(one, other) and one.requires_grad == other.requires_grad


def test_r12_memory_is_each_device_s_own() -> None:
    """R12: the memory that a plan may use is that of the device, and no device goes above it in a step."""
    model = Net(two_chains, a=linear(64), b=linear(64), c=linear(64))
    limit_bytes = 80_000  # two layers and their gradients, and some activations; not three
    cluster = baechi.Cluster.virtual(2, memory=limit_bytes)
    baechi.distribute(model, values(4, 64), cluster=cluster, placer="m-etf")
    assert sorted(baechi.plan_of(model).devices_used) == ["cpu:0", "cpu:1"]
    with cluster:
        model(values(4, 64)).sum().backward()
        peaks = baechi.last_step(model).peak_bytes
    assert all(2 * 64 * 65 * 4 <= peak <= limit_bytes for peak in peaks.values())
    assert sum(peaks.values()) > limit_bytes
    baechi.restore(model)
    with pytest.raises(baechi.PlacementError, match="cpu:0"):
        baechi.distribute(model, values(4, 64), cluster=cluster, placer="single")


@pytest.mark.parametrize("reorder", EVERY_WAY)
def test_r13_shared_weights(reorder: Any) -> None:
    """R13: layers that share weights are placed together; memory and order are still the plan's."""

    def code(self: Any, x: Tensor) -> Tensor:
        h = self.first(x)
        k = self.middle(x)
        result: Tensor = self.last(h + self.other(k))
        return result

    def build() -> Net:
        net = Net(code, first=linear(), middle=linear(), other=linear(), last=linear())
        net.last.weight = net.first.weight
        return net

    plain, model = build(), build()
    where = {"first": 0, "last": 0, "middle": 0, "other": 1}
    cluster = distribute(model, values(), where, ["middle", "other", "first", "last"], reorder=reorder)
    plain(values()).sum().backward()
    with cluster:
        model(values()).sum().backward()
    plan = baechi.plan_of(model)
    assert model.last.weight is model.first.weight
    assert torch.equal(plain.first.weight.grad, model.first.weight.grad)
    if reorder is not False:
        assert [launched_on(model, d) for d in cluster.names] == [layers_on(plan, d) for d in cluster.names]
        assert forced(model) == []
