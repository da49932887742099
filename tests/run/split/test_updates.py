"""What a step of an optimizer costs the host: as many updates as pieces, and no operator of ours."""

from typing import Any

import pytest
import torch
from run.split.split_layers import Tied, assert_same, tied_on_devices
from run.split.test_weights import OPTIMIZERS, steps

from baechi.torchlib.split_tensors.tensor import BEHAVIOUR, SplitTensor

WAYS = ({"foreach": False}, {"foreach": True}, {"fused": True})
FUSED = ("sgd", "adam", "adamw", "adagrad")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_operator_sees_a_weight_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first step, which makes state, an update runs on the pieces as on plain weights."""
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
        assert large and all(type(value) is SplitTensor for value in large)
        assert float(state.get("step", 2)) == 2


def test_a_whole_gradient_is_cut() -> None:
    """A gradient that a user puts there whole updates each piece by its part."""
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
