"""Operators unlike others: checks that return nothing, labels, sparse gradients, draws in backward."""

import copy
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import SEED, assert_same_gradients, without_plan
from run.pipeline.nets import noise, seeded
from run.programs.test_calls import EXACT, programs
from torch import Tensor, nn

import baechi

X = noise(8, 6)
WHERE = {"first": 0, "last": 1}


class Solves(nn.Module):
    """Linear algebra, whose kernels check what they computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        weight, one = self.first.weight, torch.eye(6, dtype=x.dtype)
        factor = torch.linalg.cholesky(weight @ weight.T + one)
        made = torch.linalg.solve(factor, self.first(x).T).T
        found: Tensor = torch.linalg.eigvals(weight @ weight.T + one).abs().sum()  # backward solves
        return self.last(made).square().mean() + found


class Words(nn.Module):
    """A table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(9, 6, sparse=True), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.first(x)).square().mean()
        return made


class Noisy(torch.autograd.Function):
    """Draws in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad + torch.rand_like(grad)


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(Noisy.apply(nn.functional.dropout(self.first(x), 0.4))).square().mean()  # type: ignore[no-untyped-call]
        return made


class Labels(nn.Module):
    """Labels, whose kernel asks for the smallest and the largest one to refuse them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made = self.first(x)
        chosen = nn.functional.one_hot(made.argmax(-1), 6).to(x.dtype)
        result: Tensor = self.last(made * chosen).square().mean()
        return result


CASES = [(Labels, X), (Solves, X), (Words, torch.arange(24).reshape(8, 3) % 9), (Draws, X)]


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize(("kind", "x"), CASES, ids=[kind.__name__ for kind, _ in CASES])
def test_as_the_code(kind: type[nn.Module], x: Tensor, number: int) -> None:
    model = seeded(kind)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    split: dict[str, Any] = {"microbatches": number, "coupled": "accept"} if number > 1 else {}
    baechi.distribute(model, x, cluster=cluster, device_map=WHERE, compile=EXACT, **split)
    for _ in range(2):
        for one in (model, plain):
            one.zero_grad()
        expected = without_plan(plain, {"x": x}, number)
        torch.manual_seed(SEED)
        loss = model(x)
        loss.backward()
        assert torch.allclose(loss.detach(), expected.detach(), rtol=1e-13)
        assert_same_gradients(model, plain, 1e-13)
        assert programs(model)


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        torch.linalg.cholesky(self.last.weight)  # nobody reads it
        made: Tensor = self.last(self.first(x)).square().mean()
        return made


def test_checks_raise() -> None:
    """Also where nothing reads what they check, as the code does."""
    model = seeded(Factors)
    with torch.no_grad():
        model.get_parameter("last.weight").copy_(torch.eye(6))
    baechi.distribute(model, X, cluster=baechi.Cluster.virtual(2), device_map=WHERE, compile=EXACT)
    model(X).backward()
    with torch.no_grad():
        model.get_parameter("last.weight").neg_()
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        model(X)


class Windows(nn.Module):
    """What it returns has no memory for each element."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)).unfold(1, 3, 1)


@pytest.mark.parametrize("number", [1, 4])
def test_gradients_of_what_shows_elements_twice(number: int) -> None:
    """Each element's gradient counts, also where memory is shared."""
    model = seeded(Windows)
    plain = copy.deepcopy(model)
    cluster = baechi.Cluster.virtual(2)
    baechi.distribute(
        model, X, cluster=cluster, device_map=WHERE, microbatches=number, verbose=False, compile=EXACT
    )
    weights = noise(8, 4, 3, seed=3)
    for one in (model, plain):
        (one(X) * weights).sum().backward()
    assert programs(model)
    assert_same_gradients(model, plain)
