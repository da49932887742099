"""What a step in microbatches begins with: leaves of any kind, inputs that are written; what it refuses."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import WHERE, Blocks, noise, pipelined, seeded
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize

from baechi.errors import BaechiError

X, Y = noise(8, 6), noise(8, 6, seed=2)


class Weighs(nn.Module):
    """A loss with a weight of its own, as for uncertain tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((), 0.5, dtype=torch.float64))

    def forward(self, result: Tensor, target: Tensor) -> Tensor:
        return (result - target).square().mean() * torch.exp(-self.log) + self.log


def test_a_weight_of_the_loss() -> None:
    """Its gradient waits for `backward()` as the others do, and is scaled with them."""
    model, loss = seeded(Blocks), Weighs()
    plain, plain_loss = copy.deepcopy(model), copy.deepcopy(loss)
    with pipelined(model, {"x": X, "target": Y}, microbatches=4, loss=loss):
        found = model(x=X, target=Y)
        assert loss.log.grad is None
        (found * 0.5).backward()
    (plain_loss(plain(X), Y) * 0.5).backward()
    torch.testing.assert_close(loss.log.grad, plain_loss.log.grad)
    assert_same_gradients(model, plain)


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_a_tensor_that_a_hook_adds(order: str) -> None:
    """No weight of the model, and trained all the same: by `backward()`, and by `torch.autograd.grad`."""
    model = seeded(Blocks)
    plain = copy.deepcopy(model)
    cluster = pipelined(model, (X, Y), microbatches=4, order=order)
    grads = []
    for network in (model, plain):
        steering = torch.full((6,), 0.1, dtype=torch.float64, requires_grad=True)
        network.b.register_forward_hook(lambda _, args, made, s=steering: made + s)
        with cluster:
            loss = network(X, Y)["loss"]
            assert steering.grad is None
            (grad,) = torch.autograd.grad(loss * 0.5, steering, retain_graph=network is plain)
        grads.append(grad)
    torch.testing.assert_close(grads[0], grads[1])


class Writes(nn.Module):
    """Its first layer writes its input in place; it returns the input as well."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6)), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.b(self.a(x)), x]


def test_an_input_that_is_written_and_returned() -> None:
    """It is the result of another module, which is trained through both."""
    model, before = seeded(Writes), seeded(lambda: nn.Linear(6, 6))
    plain, plain_before = copy.deepcopy(model), copy.deepcopy(before)
    with pipelined(model, X.clone(), microbatches=4, device_map={"a": 0, "b": 1}):
        for network, first in ((model, before), (plain, plain_before)):
            result, given = network(first(X))
            (result - given).square().mean().backward()
    assert_same_gradients(model, plain)
    assert_same_gradients(before, plain_before)


class Positives(nn.Module):
    """A loss of some rows; a number where a batch has none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, positive: Tensor) -> dict[str, Any]:
        made, loss = self.b(self.a(x)), 0.0
        if positive.any():
            loss = loss + made[positive].square().sum()
        return {"loss": loss, "made": made}


def test_a_microbatch_with_nothing_to_lose() -> None:
    """Its loss is a number, and has no gradient."""
    model, positive = seeded(Positives), torch.arange(8) >= 2
    plain = copy.deepcopy(model)
    where = {"a": 0, "b": 1}
    inputs = (X, torch.ones_like(positive))
    with pipelined(model, inputs, microbatches=4, device_map=where, loss_weights="sum"):
        found, expected = model(X, positive)["loss"], plain(X, positive)["loss"]
        torch.testing.assert_close(found, expected)
        found.backward()
        expected.backward()
    assert_same_gradients(model, plain)


def of_functions(model: nn.Module) -> object:
    weights = dict(model.named_parameters())
    return torch.func.grad(lambda given: functional_call(model, given, (X, Y))["loss"])(weights)


def of_computed_weights(model: nn.Module) -> object:
    weights = {name: weight * 1.5 for name, weight in model.named_parameters()}
    return functional_call(model, weights, (X, Y))


def of_duals(model: nn.Module) -> object:
    with forward_ad.dual_level():
        return model(forward_ad.make_dual(X, Y))


@pytest.mark.parametrize(
    ("use", "why"),
    [(of_functions, "torch.func"), (of_computed_weights, "a.weight"), (of_duals, "dual numbers")],
)
def test_refused(use: Callable[[nn.Module], object], why: str) -> None:
    """What would give other gradients, or none, says so; the next step is right."""
    model = seeded(Blocks)
    plain = copy.deepcopy(model)
    with pipelined(model, (X, Y), microbatches=4):
        with pytest.raises(BaechiError, match=rf"{why}.*baechi.unsplit"):
            use(model)
        model(X, Y)["loss"].backward()
    plain(X, Y)["loss"].backward()
    assert_same_gradients(model, plain)


@pytest.mark.parametrize("compile", [None, "stages"])
def test_cached_parametrizations_are_refused(compile: str | None) -> None:
    """The weight had no gradient: what judged the batch had filled torch's cache without histories."""
    model = seeded(Blocks)
    parametrizations.weight_norm(model.a)
    with pipelined(model, (X, Y), microbatches=4, compile=compile):
        with (
            pytest.raises(BaechiError, match=r"parametrize.cached\(\).*baechi.unsplit"),
            parametrize.cached(),
        ):
            model(X, Y)
        model(X, Y)["loss"].backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_leaves_that_are_weights() -> None:
    """Other leaves in place of the weights get the gradients."""
    model = seeded(Blocks)
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    plain = copy.deepcopy(model)
    with pipelined(model, (X, Y), microbatches=4):
        functional_call(model, weights, (X, Y))["loss"].backward()
    plain(X, Y)["loss"].backward()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(weights[name].grad, weight.grad)


def test_a_thread_that_evaluates() -> None:
    """While another one trains: neither sees what the other's microbatches write, nor its gradients."""
    model = seeded(Blocks)
    plain = copy.deepcopy(model)
    plain(X, Y)["loss"].backward()
    expected = plain(X).detach()
    over, wrong = threading.Event(), []

    def evaluate() -> None:
        while not over.is_set():
            with torch.no_grad():
                wrong.extend([1] * (not torch.allclose(model(X), expected)))

    pipelined(model, (X, Y), microbatches=4, device_map=WHERE)
    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        for _ in range(10):
            model.zero_grad()
            model(X, Y)["loss"].backward()
            assert_same_gradients(model, plain)
    finally:
        over.set()
        thread.join()
    assert not wrong


def test_gradients_handed_over_during_an_evaluation() -> None:
    """A thread evaluates for the first time while `backward()` of another one writes gradients: they stay."""
    model = seeded(Blocks)
    plain = copy.deepcopy(model)
    plain(X, Y)["loss"].backward()
    expected = plain(X).detach()
    inside, over, found = threading.Event(), threading.Event(), []

    def wait(*_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            over.wait()

    def evaluate() -> None:
        with torch.no_grad():
            found.append(model(X))

    pipelined(model, (X, Y), microbatches=4, device_map=WHERE)
    loss = model(X, Y)["loss"]
    handle = next(iter(model.children())).register_forward_pre_hook(wait)
    thread = threading.Thread(target=evaluate)
    thread.start()
    try:
        assert inside.wait(60)
        loss.backward()
    finally:
        over.set()
        thread.join()
        handle.remove()
    assert_same_gradients(model, plain)
    torch.testing.assert_close(found[0], expected)
