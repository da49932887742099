"""Peaks that once were above the prediction: exactly the predicted memory is enough."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from architectures import HELD_IN, loss_of
from architectures.base import noise
from run.launch.equal_layers import Net
from torch import Tensor, nn

import baechi
from baechi import zoo

Optimizers = Callable[[Any], torch.optim.Optimizer]


def assert_fits(
    model: nn.Module,
    inputs: Any,
    *,
    placer: str = "single",
    n: int = 1,
    name: str | None = None,
    optimizer: Optimizers | None = None,
) -> None:
    """With exactly the predicted peaks as memory, two steps run."""
    training = optimizer is not None
    graph = baechi.profile(model, inputs, cluster=baechi.Cluster.virtual(1), training=training)
    plan = baechi.place(graph, baechi.Cluster.virtual(n), placer, optimizer=name)
    peaks = plan.timeline.peak_bytes
    devices = [replace(device, memory_bytes=peaks[device.name]) for device in plan.cluster.devices]
    cluster = replace(plan.cluster, devices=tuple(devices))
    baechi.assign(model.train(training), replace(plan, cluster=cluster))
    with cluster:
        weights = optimizer(model.parameters()) if optimizer is not None else None
        for _ in range(2):
            if weights is not None:
                weights.zero_grad()
            with torch.set_grad_enabled(training):
                out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            if weights is not None:
                loss_of(out).backward()
                weights.step()


def test_memory_of_recurrent_layers() -> None:
    """What a recurrent kernel keeps for backward, its workspace, is part of the prediction."""
    assert_fits(nn.LSTM(16, 16), noise(8, 4, 16), name="sgd", optimizer=lambda w: torch.optim.SGD(w, lr=0.1))


def test_memory_of_the_batch() -> None:
    """The batch stays on the device as long as the caller's frames hold it, in inference too."""
    assert_fits(nn.Sequential(nn.Linear(64, 4), nn.Linear(4, 64)), noise(256, 64))


def test_memory_of_variables() -> None:
    """What a variable of `forward` holds stays until `forward` returns, read or not."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(1, 64), *[nn.Linear(64, 64) for _ in range(3)]])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one = self.layers[0](x)
            two = self.layers[1](one)
            three = self.layers[2](two)
            out: torch.Tensor = self.layers[3](three)
            return out

    assert_fits(Model(), noise(256, 1))


def test_memory_of_gradients_made_in_backward() -> None:
    """A layer's backward makes the gradient of its input while it holds that of its output."""
    model, (images,) = zoo.inception_v3("small")
    inputs = {"images": images}
    assert_fits(
        model, inputs, placer="m-topo", n=3, name="sgd", optimizer=lambda w: torch.optim.SGD(w, lr=0.1)
    )


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        # the last weight's denominator lives on in a variable, beside a root and a quotient
        ("adam", lambda w: torch.optim.Adam(w, foreach=False)),
        # roots and products, of all weights at once
        ("adagrad", lambda w: torch.optim.Adagrad(w, foreach=True)),
    ],
    ids=["adam", "adagrad"],
)
def test_memory_of_optimizers(name: str, optimizer: Optimizers) -> None:
    """An optimizer's step has temporary tensors: three of a weight in plain Adam, two of all in Adagrad."""
    layers = [nn.Linear(64, 64, bias=False) for _ in range(2)]
    assert_fits(nn.Sequential(*layers), noise(2, 64), name=name, optimizer=optimizer)


def test_memory_that_comes_back_late() -> None:
    """A host far ahead has blocks that are used on other streams come back late; the peak has nearly all."""
    llama = next(a for a in HELD_IN if a.name == "llama")
    model, cluster = llama.build().train(), baechi.Cluster.virtual(4)
    baechi.distribute(model, llama.inputs(), cluster=cluster, placer="random:4", optimizer="adam")
    predicted = baechi.plan_of(model).timeline.peak_bytes
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    with cluster:
        for _ in range(2):
            optimizer.zero_grad()
            model(**llama.inputs()).loss.backward()
            optimizer.step()
            measured = baechi.last_step(model).peak_bytes
            assert all(measured[name] <= 1.02 * predicted[name] for name in cluster.names)


@pytest.mark.parametrize("shared", ["by calls", "by a tie"])
def test_gradients_of_weights_with_several_uses(shared: str) -> None:
    """The second gradient of a weight is made while the first is held: the plan's peak has both."""

    def code(self: Any, x: Tensor) -> Tensor:
        second = self.a if shared == "by calls" else self.b
        result: Tensor = self.c(second(self.a(x)))
        return result

    model = Net(code, "", a=nn.Linear(8, 8))
    model.a, model.b, model.c = (nn.Linear(64, 64, bias=False) for _ in range(3))
    if shared == "by a tie":
        model.b.weight = model.a.weight
    else:
        del model.b
    x = {"x": torch.ones(2, 64)}
    cluster = baechi.Cluster.virtual(2)
    device_map = {name: int(name == "c") for name, _ in model.named_children()}
    baechi.distribute(model, x, cluster=cluster, device_map=device_map, training=True)
    with cluster:
        model(**x).sum().backward()
        measured = baechi.last_step(model).peak_bytes
    planned = baechi.plan_of(model).timeline.peak_bytes
    assert all(measured[device] <= planned[device] for device in cluster.names)
