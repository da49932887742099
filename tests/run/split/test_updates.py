"""What a step of an optimizer costs the host: as many updates as shards, and no operator of ours."""

from importlib import import_module
from typing import Any

import pytest
import torch
from run.split.split_layers import Tied, assert_same, tied_on_devices
from run.split.test_weights import OPTIMIZERS, steps

import baechi
from baechi.torchlib.shards.weight import BEHAVIOUR, ShardedWeight

WAYS = ({"foreach": False}, {"foreach": True}, {"fused": True})
FUSED = ("sgd", "adam", "adamw", "adagrad")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_operator_sees_a_sharded_weight(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first step, which makes state, an update runs on the shards as on plain weights."""
    model, _, _, inputs = tied_on_devices()
    run = BEHAVIOUR["operator"]
    for way in WAYS[: 3 if name in FUSED else 2]:
        optimizer = OPTIMIZERS[name](model.parameters(), **way)
        steps(model, inputs, optimizer, 1)
        seen: list[str] = []

        def counted(func: Any, args: Any, kwargs: Any, seen: list[str] = seen) -> Any:
            seen.append(str(func))
            return run(func, args, kwargs)

        with monkeypatch.context() as patch:
            patch.setitem(BEHAVIOUR, "operator", counted)
            optimizer.step()
        assert seen == []
        state = optimizer.state[model.head.weight]
        large = [value for value in state.values() if isinstance(value, torch.Tensor) and value.dim()]
        assert large and all(type(value) is ShardedWeight for value in large)
        assert float(state.get("step", 2)) == 2


def test_a_whole_gradient_is_cut() -> None:
    """A gradient that a user puts there whole updates each shard by its part."""
    model, plain, _, _ = tied_on_devices()
    for network in (model, plain):
        assert isinstance(network, Tied)
        optimizer = torch.optim.SGD([network.head.weight], lr=0.1)
        network.head.weight.grad = torch.arange(41 * 6, dtype=torch.float64).view(41, 6)
        optimizer.step()
    assert_same(model, plain, grads=False)


def test_a_closure() -> None:
    """An optimizer that computes the loss itself does the same."""
    model, plain, cluster, inputs = tied_on_devices()
    for network in (model, plain):
        optimizer = torch.optim.Adam(network.parameters(), lr=0.1)

        def closure(network: Any = network, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = network(*inputs)
            loss.backward()
            return loss

        with cluster:
            optimizer.step(closure)
            optimizer.step(closure)
    assert_same(model, plain)


def test_an_update_by_name() -> None:
    """Other libraries' optimizers may call torch's updates with lists by name."""
    model, plain, _, _ = tied_on_devices()
    for network in (model, plain):
        assert isinstance(network, Tied)
        weights: list[torch.Tensor] = [network.middle.weight, network.head.weight, network.middle.bias]
        buffers: list[torch.Tensor | None] = [torch.ones_like(weight) for weight in weights]
        with torch.no_grad():
            import_module("torch.optim.sgd").sgd(
                params=weights, d_p_list=[torch.ones_like(weight) for weight in weights],
                momentum_buffer_list=buffers, weight_decay=0.1, momentum=0.9, lr=0.1, dampening=0.0,
                nesterov=True, maximize=False, foreach=False,
            )  # fmt: skip
    assert_same(model, plain, grads=False)


def test_a_gradient_is_deleted() -> None:
    """`del weight.grad`, as of any weight."""
    model, _, _, _ = tied_on_devices()
    assert isinstance(model, Tied)
    weight = model.head.weight
    weight.grad = torch.zeros_like(weight)
    del weight.grad
    assert weight.grad is None


def test_state_of_another_split() -> None:
    """Restored and split at other places between two steps: the state is cut anew."""
    model, plain, cluster, inputs = tied_on_devices()
    optimizers = [torch.optim.Adam(network.parameters(), lr=0.1) for network in (model, plain)]
    for again in (False, True):
        if again:
            baechi.restore(model)
            spec = baechi.BatchSpec({"out": 30}, device_matrix=[2, 1])  # `middle` stays where its state is
            baechi.distribute(model, inputs, cluster=cluster, split={"head": spec}, effort=0, verify=False)
        for network, optimizer in zip((model, plain), optimizers, strict=True):
            with cluster:
                steps(network, inputs, optimizer, 1)
    assert_same(model, plain)
