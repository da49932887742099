"""Where what a step makes of nothing, adds up or assigns anew lies, and what simulations count there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi

X = torch.ones(64, 8)


class _Net(nn.Module):
    """Two layers on two devices, and what the test says between them."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.LayerNorm(8)
        self.register_buffer("average", torch.zeros(8), persistent=False)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.between(self, x)


def constant(net: Any, x: Tensor) -> Tensor:
    """A constant that both layers' devices read."""
    made = torch.arange(8.0)
    return net.second(net.first(x) + made) + made


def squared(net: Any, x: Tensor) -> Tensor:
    """A constant that an operation reads twice."""
    made = torch.arange(8.0)
    return net.second(torch.addcmul(net.first(x), made, made))


def by_device(net: Any, x: Tensor) -> Tensor:
    """A factory of a device that reads a tensor."""
    rows = (x.abs().sum() > 0).long() + 1
    hidden = net.second(net.first(x))
    return hidden + torch.arange(rows, device=hidden.device, dtype=torch.float32)[:1] / rows


def assigned(net: Any, x: Tensor) -> Tensor:
    """A buffer that forward assigns anew."""
    halved = net.average * 0.5
    hidden = net.second(net.first(x))
    net.average = halved + hidden.detach().mean(0)
    return hidden - net.average


def twice(net: Any, x: Tensor) -> Tensor:
    """An activation that two devices read: its gradients meet where it was made."""
    hidden = net.first(x)
    read = net.second(hidden)
    return read + hidden * 2


@pytest.mark.parametrize("code", [constant, squared, by_device, assigned, twice])
@pytest.mark.parametrize("training", [False, True])
def test_the_simulator_agrees_with_a_dry_run(code: Any, training: bool) -> None:
    model = _Net(code).train(training)
    one = baechi.Cluster.virtual(1, like="CPU")
    graph = baechi.profile(model, (X,), cluster=one, training=training, source="estimate")
    device_of = {name: f"cpu:{int(graph.module_of(name) == 'second')}" for name in graph.placed()}
    groups = graph.groups().values()
    for group in groups:
        device_of.update(dict.fromkeys(group, device_of[next((n for n in group if n == "second"), group[0])]))
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="CPU")
    plan = baechi.Plan(graph, cluster, device_of, tuple(graph.placed()), "by hand")
    said = baechi.simulate(plan)
    ran = baechi.dry_run(_Net(code).train(training), (X,), plan, optimizer="sgd" if training else None)
    assert said.makespan_s == pytest.approx(ran.makespan_s, rel=0.01)
    for name, size in ran.peak_bytes.items():
        assert size <= said.peak_bytes[name] <= 1.15 * size
