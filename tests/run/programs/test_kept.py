"""Tensors that code keeps in attributes and dicts: a part of a loss, a table that is made once, a state."""

import copy
from typing import Any

import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients, loop
from run.pipeline.nets import noise, seeded
from run.programs.test_calls import EXACT, programs
from torch import Tensor, nn

import baechi

X = noise(8, 6)
WHERE = {"first": 0, "last": 1}


class Block(nn.Linear):
    """A layer that keeps a part of the loss, and what it made."""

    aux: Tensor
    seen: dict[str, Any]

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        self.aux, self.seen = made.square().mean(), {"made": (made.detach(), len(x)), "name": "block"}
        return made.relu()


class Aux(nn.Module):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Block(6, 6), Block(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.first(x)).square().mean()
        return made + 0.1 * (self.first.aux + self.last.aux)


def pair(kind: type[nn.Module], number: int) -> tuple[nn.Module, nn.Module]:
    model = seeded(kind)
    plain, cluster = copy.deepcopy(model), baechi.Cluster.virtual(2)
    split: dict[str, Any] = {"microbatches": number, "coupled": "accept"} if number > 1 else {}
    baechi.distribute(model, X, cluster=cluster, device_map=WHERE, compile=EXACT, **split)
    return model, plain


def step(model: nn.Module, plain: nn.Module, number: int) -> None:
    """A step of both gives the same."""
    for one in (model, plain):
        one.zero_grad()
    expected = loop(plain, {"x": X}, number)
    loss = model(X)
    loss.backward()
    assert torch.allclose(loss.detach(), expected, rtol=1e-13)
    assert_same_gradients(model, plain, 1e-13)


@pytest.mark.parametrize("number", [1, 4])
def test_what_is_kept_is_there_after_the_step(number: int) -> None:
    """That of the last microbatch, as in the loop."""
    model, plain = pair(Aux, number)
    for _ in range(2):
        step(model, plain, number)
        assert programs(model)
        for name in ("first", "last"):
            one, other = model.get_submodule(name), plain.get_submodule(name)
            assert torch.allclose(one.aux, other.aux, rtol=1e-13) and one.aux.requires_grad
            (made, rows), (same, like) = one.seen["made"], other.seen["made"]
            assert torch.allclose(made, same, rtol=1e-13) and rows == like and one.seen["name"] == "block"


def test_gradients_through_what_is_kept() -> None:
    """Of one step they are those of the code; of a microbatch there are none, which is said."""
    model, plain = pair(Aux, 1)
    for one in (model, plain):
        (one(X) + one.get_submodule("first").aux.square()).backward()
    assert_same_gradients(model, plain, 1e-13)
    model, _ = pair(Aux, 4)
    model(X)
    with pytest.raises(baechi.BaechiError, match="no gradient any more"):
        model.get_submodule("first").aux.backward()


class Table(nn.Module):
    """A table that the first call makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(6, dtype=x.dtype, device=x.device).cos()
        return self.last(self.first(x) * self.table).square().mean()


class Tables(Table):
    """Such tables in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.arange(6, dtype=x.dtype, device=x.device).cos()
        return self.last(self.first(x) * self.tables[x.shape[1]]).square().mean()


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("kind", [Table, Tables])
def test_a_table_that_the_first_call_makes(kind: type[nn.Module], number: int) -> None:
    """In microbatches that call runs as written, since the second microbatch reads the table."""
    model, plain = pair(kind, number)
    ran = []
    for _ in range(3):
        step(model, plain, number)
        ran.append(bool(programs(model)))
    assert ran[1:] == [True, True] and ran[0] == (number == 1)


class Recurrent(Table):
    """A state that each call reads and makes anew."""

    def forward(self, x: Tensor) -> Tensor:
        made = self.first(x)
        before = torch.zeros_like(made[0]) if self.table is None else self.table
        self.table = (made.mean(0) + before).detach()
        return self.last(made + before).square().mean()


def test_a_state() -> None:
    """In one step it is as in the code; in microbatches it is refused, and nothing of it stays."""
    model, plain = pair(Recurrent, 1)
    for _ in range(3):
        step(model, plain, 1)
        assert programs(model) and torch.allclose(model.table, plain.table, rtol=1e-13)
    model, _ = pair(Recurrent, 4)
    with pytest.raises(baechi.CompileError, match="keeps a tensor in table") as raised:
        model(X)
    assert model.table is None
    assert "test_kept.py:" in str(raised.value) and "register_buffer" in str(raised.value)
