"""Where what a step makes of nothing, adds up or assigns anew lies, and what simulations count there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baechi

X = torch.ones(64, 8)


class _Held:
    """An object that holds a number, as caches of libraries do."""

    def __init__(self) -> None:
        self.number = torch.tensor(range(4096))


class _Adds(nn.Module):
    """A layer that brings numbers to its device, and indexes with others."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor, held: _Held | Tensor | None = None) -> Tensor:
        if isinstance(held, Tensor):
            return x * self.scale + held.sum()
        if held is not None:
            held.number = held.number.to(x.device)
            return x * self.scale
        low, high = torch.tensor([1.0] * 4096), torch.tensor([2.0] * 4096, device=x.device)
        x = x * self.scale[(torch.arange(8) * 3 + 1).flip(0) % 8]  # indices stay on the host
        return x + low.to(x.device).sum() + high.sum() + x.new_tensor([3.0] * 4096).mean()


class _Turned(nn.Module):
    """A layer with a transposed weight, so its gradient is transposed, too."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.turned.t().contiguous()


class _Net(nn.Module):
    """Two layers on two devices, and what the test says between them."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.LayerNorm(8), _Adds()
        self.fourth, self.fifth, self.table = _Adds(), _Turned(), nn.Parameter(torch.ones(512))
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


def brought(net: Any, x: Tensor) -> Tensor:
    """Numbers that a layer makes on the host, and brings to the device of a tensor."""
    return net.third(net.second(net.first(x)))


def held(net: Any, x: Tensor) -> Tensor:
    """Numbers that an object holds, and a layer brings to its device."""
    cache = _Held()
    hidden = net.third(net.second(net.first(x)), cache)
    return hidden + cache.number[1:9]


def lent(net: Any, x: Tensor) -> Tensor:
    """A weight that layers of two devices are given: its copy stays, as the weight does."""
    hidden = net.third(net.second(net.fourth(net.first(x), net.table)), net.table)
    return torch.cat([net.second(hidden * 2)] * 4)


def transposed(net: Any, x: Tensor) -> Tensor:
    """A weight whose gradient comes in another layout: it is copied."""
    return net.second(net.fifth(net.first(x)))


_CODES = [constant, squared, by_device, assigned, twice, brought, held, lent, transposed]


@pytest.mark.parametrize("code", _CODES)
@pytest.mark.parametrize("training", [False, True])
def test_the_simulator_agrees_with_a_dry_run(code: Any, training: bool) -> None:
    agree(code, training=training, places=("cpu:0", "cpu:1"))


def masked(net: Any, x: Tensor) -> Tensor:
    """A constant that an operation on inputs reads: on one device that runs there."""
    mask = (x.sum() > 0) & (torch.arange(32000.0) > 0)
    return net.second(net.first(x)) * mask.all()


def test_what_reads_inputs_only_runs_on_the_one_device() -> None:
    agree(masked, training=False, places=("cpu:0", "cpu:0"))


def agree(code: Any, *, training: bool, places: tuple[str, str]) -> None:
    """Check the simulation of a model on two devices, or one, against its dry run."""
    model = _Net(code).train(training)
    one = baechi.Cluster.virtual(1, like="CPU")
    graph = baechi.profile(model, (X,), cluster=one, training=training, source="estimate")
    second = ("second", "third")
    device_of = {name: places[graph.module_of(name) in second] for name in graph.placed()}
    groups = graph.groups().values()
    for group in groups:
        device_of.update(dict.fromkeys(group, device_of[next((n for n in group if n in second), group[0])]))
    cluster = baechi.Cluster.virtual(2, memory="1GiB", like="CPU")
    plan = baechi.Plan(graph, cluster, device_of, tuple(graph.placed()), "by hand")
    said = baechi.simulate(plan)
    ran = baechi.dry_run(_Net(code).train(training), (X,), plan, optimizer="sgd" if training else None)
    assert said.makespan_s == pytest.approx(ran.makespan_s, rel=0.01)
    for name, size in ran.peak_bytes.items():
        assert size <= said.peak_bytes[name] <= 1.15 * size
