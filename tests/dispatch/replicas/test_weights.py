"""What changes on the master is changed everywhere at the next call; gradients come back to it."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from dispatch.chunks_of import assert_close, mlp
from torch import nn

import baechi

X = torch.randn(10, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def two(workers: str = "inline", **given: Any) -> tuple[nn.Module, baechi.Dispatched]:
    """A model, and the same over two devices that both have copies: chunks of 3 and 2 rows."""
    model = mlp(torch.float64)
    scheduler = baechi.HybridScheduler(baechi.Cluster.virtual(2), [3, 2])
    return model, baechi.dispatch(model, scheduler, workers=workers, **given)  # type: ignore[arg-type]


def _step(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.enable_grad():
        model(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _replaced(model: nn.Module) -> None:
    model[0].weight = nn.Parameter(torch.ones(16, 8, dtype=torch.float64))  # type: ignore[index,operator]


def _layer(model: nn.Module) -> None:
    model[1] = nn.Tanh()  # type: ignore[index,operator]


def _tied(model: nn.Module) -> None:
    model.append(nn.Linear(4, 4, dtype=torch.float64))  # type: ignore[operator]
    model.append(model[-1])  # type: ignore[operator,index]


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "in place": lambda model: model[0].bias.add_(1),  # type: ignore[index]
    "an optimizer's step": _step,
    "loaded": lambda model: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}),
    "replaced": _replaced,
    "another layer": _layer,
    "more layers, tied": _tied,
    "a pointer": lambda model: setattr(model[2].weight, "data", model[2].weight.data * 2),  # type: ignore[index]
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_everywhere_at_the_next_call(change: str) -> None:
    model, dispatched = two()
    with torch.no_grad():
        before = dispatched(X)
        CHANGES[change](model)
        found = dispatched(X)
        assert_close(found, model(X))
    assert not torch.allclose(before, found)


def test_what_no_version_tells_of_takes_a_sync() -> None:
    model, dispatched = two()
    with torch.no_grad():
        before = dispatched(X)
        model[0].weight.data.zero_()  # type: ignore[index]
        assert_close(dispatched(X), before)
        dispatched.sync()
        assert_close(dispatched(X), model(X))


def test_buffers_and_another_shape() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    model = Scaled()
    dispatched = baechi.dispatch(model, baechi.HybridScheduler(baechi.Cluster.virtual(2), 3))
    assert_close(dispatched(X), model(X))
    model.scale = torch.arange(8.0)
    assert_close(dispatched(X), model(X))


def test_copies_are_made_once() -> None:
    model, dispatched = two()
    with torch.no_grad():
        dispatched(X)
        held = [weight for copied in _copies(dispatched) for weight in copied]
        dispatched(X)
        model[0].bias.add_(1)  # type: ignore[index]
        dispatched(X)
    assert [id(w) for copied in _copies(dispatched) for w in copied] == [id(w) for w in held]


def _copies(dispatched: baechi.Dispatched) -> list[list[torch.Tensor]]:
    session: Any = dispatched._session
    return [list(weights.copies.values()) for weights in session.replicas._weights.values()]


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_gradients_of_uneven_chunks_are_added_on_the_master(workers: str, emulated: bool) -> None:
    """Two steps of training; the loss is a mean over rows, of chunks of 3 and 2."""
    model, dispatched = two(workers)
    cluster: Any = dispatched.scheduler.targets[0].cluster if emulated else nullcontext()
    again, _ = two()
    target = torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for trained, call in ((model, dispatched), (again, again)):
        optimizer = torch.optim.SGD(trained.parameters(), 0.5, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            with cluster:
                nn.functional.mse_loss(call(X), target).backward()
            optimizer.step()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, again.get_parameter(name), rtol=1e-12, atol=1e-14)


def test_a_loss_in_the_model_is_weighted_by_rows() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).square().mean()

    model = Loss()
    dispatched = baechi.dispatch(
        model, baechi.HybridScheduler(baechi.Cluster.virtual(2), [3, 2]), workers="thread", out="mean"
    )
    x = X.clone().requires_grad_()
    grads = []
    for call in (dispatched, model):
        loss = call(x)
        grads.append(torch.autograd.grad(loss, [x, *model.parameters()]))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_the_models_writes_to_its_arguments_are_seen() -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    given = torch.zeros(10, 2)
    baechi.dispatch(Writes(), baechi.HybridScheduler(baechi.Cluster.virtual(2), 3))(given)
    assert torch.equal(given, torch.ones(10, 2))
