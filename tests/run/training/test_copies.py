"""Copies, state dicts and averages of a distributed model."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from run.training.towers import (
    assert_equal,
    assert_trains_as_plain,
    batch,
    loss_on,
    momentum,
    places_of,
    planned_places,
    spread,
    towers,
    train,
)
from same import identical
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def pickled(model: nn.Module) -> nn.Module:
    copied: nn.Module = pickle.loads(pickle.dumps(model))
    return copied


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_copies_of_a_model(duplicate: Callable[[nn.Module], nn.Module], inside: bool) -> None:
    """A copy, made inside or outside, trains inside as the original does, on the same devices."""
    plain, model = towers(), towers()
    cluster = spread(model)
    train(plain)
    copied = None if inside else duplicate(model)
    with cluster:
        copied = copied or duplicate(model)
        train(copied)
        assert places_of(copied) == planned_places(copied)
        train(model)
    assert_equal(plain, copied)
    assert_equal(plain, model)
    assert all(a is not b for a, b in zip(copied.parameters(), model.parameters(), strict=True))


def saved(state: Any) -> Any:
    """A state dict that was written to a file and read again."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def test_state_dicts() -> None:
    """Saved and loaded inside, model and optimizer go on where they were, on the same devices."""

    def run(model: nn.Module) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        loss_on(model, batch()).backward()
        optimizer.step()
        state, moments = saved(model.state_dict()), saved(optimizer.state_dict())
        train(model)  # what is to be forgotten
        model.load_state_dict(state)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer.load_state_dict(moments)
        optimizer.zero_grad()
        loss_on(model, batch()).backward()
        optimizer.step()

    plain, model = towers(), towers()
    cluster = spread(model)
    run(plain)
    with cluster:
        run(model)
        assert places_of(model) == planned_places(model)
    assert_equal(plain, model)


def test_best_weights() -> None:
    """A deep copy of the state dict lies where the weights lie, and can be loaded and averaged."""

    def run(model: nn.Module) -> None:
        best = copy.deepcopy(model.state_dict())
        train(model)
        for name, weight in model.state_dict().items():
            if weight.is_floating_point():
                best[name].lerp_(weight, 0.5)
        model.load_state_dict(best)

    assert_trains_as_plain(run)


@pytest.mark.parametrize("buffers", [True, False], ids=["with buffers", "without buffers"])
def test_moving_average(buffers: bool) -> None:
    """An exponential moving average of a distributed model is a distributed model of its own."""

    def run(model: nn.Module) -> nn.Module:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=buffers)
        optimizer = momentum(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss_on(model, batch()).backward()
            optimizer.step()
            average.update_parameters(model)
        with torch.no_grad():
            average.eval()(batch())
        copied: nn.Module = average.module
        return copied

    plain, model = towers(), towers()
    expected, cluster = run(plain), spread(model)
    with cluster:
        average = run(model)
        assert places_of(average) == planned_places(average)
    assert_equal(plain, model)
    assert_equal(expected, average)


def test_functional_call() -> None:
    """A call with other weights computes with those, and gradients reach them."""

    def run(model: nn.Module) -> list[torch.Tensor]:
        others = {name: (2 * weight.detach()).requires_grad_() for name, weight in model.named_parameters()}
        out = torch.func.functional_call(model, others, (batch(),))
        out.sum().backward()
        assert all(weight.grad is None for weight in model.parameters())
        return [out.detach(), *[other.grad for other in others.values() if other.grad is not None]]

    plain, model = towers(), towers()
    expected, cluster = run(plain), spread(model)
    with cluster:
        found = run(model)
    assert len(found) == 11
    assert all(identical(a, b) for a, b in zip(expected, found, strict=True))
