"""Many gradients at once, by torch's older vmap and by torch.func: through transfers, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

import baechi
from baechi.errors import BaechiError

X = torch.linspace(-1, 1, 12).reshape(3, 4).double()
WHERE = {"0": 0, "1": 0, "2": 1, "3": 1, "4": 0}


def chain() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2)
    return nn.Sequential(*layers).double()


def of_inputs(model: nn.Module) -> Any:
    x = X.clone().requires_grad_()
    y = model(x)
    return torch.autograd.grad(y.sum(0), x, torch.eye(2).double(), is_grads_batched=True)


def of_weights(model: nn.Module) -> Any:
    y = model(X).sum(0)
    return torch.autograd.grad(y, list(model.parameters()), torch.eye(2).double(), is_grads_batched=True)


def backwards_twice(model: nn.Module) -> Any:
    return hessian(lambda x: model(x).pow(2).sum(), X, vectorize=True)


def inside_each_other(model: nn.Module) -> Any:
    first = lambda x: jacobian(model, x, vectorize=True, create_graph=True).sum()  # noqa: E731
    return jacobian(first, X, vectorize=True)


def by_sample(model: nn.Module) -> Any:
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x[None],)).sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, X)


WAYS: list[Callable[[nn.Module], Any]] = [
    of_inputs,
    of_weights,
    lambda model: jacobian(model, X, vectorize=True),
    lambda model: jacobian(model, X, vectorize=True, strategy="forward-mode"),
    backwards_twice,
    inside_each_other,
    by_sample,
    lambda model: torch.func.vmap(model)(X),
    lambda model: torch.func.jvp(model, (X,), (X,)),
    lambda model: torch.func.jacrev(model)(X),
]


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("where", [WHERE, {"": 0}], ids=["two devices", "one"])
@pytest.mark.parametrize("emulated", [True, False], ids=["emulated", "outside"])
@pytest.mark.parametrize("way", WAYS)
def test_they_are_those_of_the_plain_model(
    way: Callable[[nn.Module], Any], emulated: bool, where: dict[str, int]
) -> None:
    """What lies behind a batch of gradients travels, and comes back as a batch."""
    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(chain(), X, cluster=cluster, device_map=where)
    expected = way(chain())
    if emulated:
        with cluster:
            found = torch.utils._pytree.tree_map(lambda one: one.cpu(), way(model))
    else:
        found = way(model)
    torch.testing.assert_close(found, expected)


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("way", [of_inputs, by_sample, of_weights, backwards_twice, WAYS[2], WAYS[7]])
def test_in_microbatches_they_are_refused(way: Callable[[nn.Module], Any]) -> None:
    """Their backward runs once. The error is ours, and says what to do."""
    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(chain(), X, cluster=cluster, device_map=WHERE, microbatches=3)
    with cluster, pytest.raises(BaechiError, match=r"baechi\.unsplit|microbatches=1"):
        way(model)


@pytest.mark.parametrize("where", [WHERE, {"": 0}], ids=["two devices", "one"])
@pytest.mark.parametrize("kind", ["linearize", "make_fx", "trace", "script", "export"])
def test_what_traces_is_refused(kind: str, where: dict[str, int]) -> None:
    """A trace would hold transfers to fixed devices, whatever makes it."""
    cluster = baechi.Cluster.virtual(2)
    model = baechi.distribute(chain(), X, cluster=cluster, device_map=where)
    made: dict[str, Callable[[], Any]] = {
        "linearize": lambda: torch.func.linearize(model, X),
        "make_fx": lambda: torch.fx.experimental.proxy_tensor.make_fx(model)(X),
        "trace": lambda: torch.jit.trace(model, X),
        "script": lambda: torch.jit.script(model),
        "export": lambda: torch.export.export(model, (X,)),
    }
    with cluster, pytest.raises(BaechiError, match="cannot be traced, scripted or exported"):
        made[kind]()
    baechi.restore(model)
    torch.jit.script(model)
