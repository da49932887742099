"""What cannot be captured: `"stages"` raises with the line; `"auto"` runs the code, and says so once."""

import copy
import logging
from typing import Any

import numpy
import pytest
import torch
from run.pipeline.by_loop import assert_same_gradients
from run.pipeline.nets import assert_at_most, assert_columns
from run.programs.test_calls import AUTO, EXACT, Net, X, Y, pair, programs, trained
from torch import Tensor, nn

import baechi


class Appends(Net):
    """Code that appends to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        self.seen.append(x.detach().sum())
        return super().forward(x, y)


class Computes(Net):
    """Code that computes with a number that it counts."""

    calls = 0

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        self.calls += 1
        return super().forward(x * self.calls, y)


class Branches(Net):
    """Code that decides by a value."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        if self.a(x).sum() > 1e9:
            return None
        return super().forward(x, y)


class Penalizes(Net):
    """Code that takes gradients."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.a(x).sum(), x, create_graph=True)
        return super().forward(x, y) + slope.square().mean()


class DrawsByNumpy(Net):
    """Code that draws with numpy."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return super().forward(x * torch.from_numpy(numpy.random.rand(6)), y)


class Averages(Net):
    """A batch norm that counts its batches, and divides by the count."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(self.a, nn.BatchNorm1d(6, momentum=None))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return super().forward(self.a(x), y)


class Told(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Appends, "items of a list"),
        (Branches, "decides by the values"),
        (Computes, "register_buffer"),
        (Penalizes, "gradients inside"),
        (Averages, "without a momentum"),
    ],
)
def test_what_cannot_be_captured(kind: type[Net], why: str) -> None:
    """`distribute` raises with the line; with `"auto"` the code runs, which is said once."""
    with pytest.raises(baechi.CompileError, match=why) as raised:
        pair(kind)
    assert "test_refusals.py:" in str(raised.value)
    model, plain = pair(kind, how=AUTO)
    told = Told()
    logging.getLogger("baechi").addHandler(told)
    for _ in range(2):
        assert torch.equal(trained(model, X, Y), trained(plain, X, Y))
    logging.getLogger("baechi").removeHandler(told)
    assert_same_gradients(model, plain)
    assert sum(why in one for one in told.said) == 1
    assert not programs(model)


def test_numpy_draws_as_the_code_says() -> None:
    """Torch's compiler would draw with torch in its place."""
    with pytest.raises(baechi.CompileError, match="draw them with torch"):
        pair(DrawsByNumpy)
    losses = []
    for one in pair(DrawsByNumpy, how=AUTO):
        numpy.random.seed(1)
        losses.append(trained(one, X, Y))
    assert torch.equal(*losses)


class Picky(Net):
    """Code that raises."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        if len(x) % 2:
            raise ValueError(f"it takes pairs, and not {len(x)} rows")
        assert_columns(x, 6)
        return super().forward(x, y)


def test_what_the_code_raises_is_said() -> None:
    """So is an assertion, and what torch cannot compute; the model runs afterwards."""
    model, plain = pair(Picky)
    with pytest.raises(
        baechi.CompileError, match=r"raises ValueError\('it takes pairs, and not 7 rows'\), at"
    ):
        model(X[:7], Y[:7])
    with pytest.raises(baechi.CompileError, match="an assertion of the code does not hold"):
        model(X[:, :5], Y)
    with pytest.raises(baechi.CompileError, match=r"cannot run an operator .* broadcast"):
        model(X, Y[:3, :5])
    assert torch.equal(trained(model, X, Y), trained(plain, X, Y)) and programs(model)


class Asserts(Net):
    """Code that takes a number out of a tensor."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        assert_at_most(x.long(), 9)
        return super().forward(x, y)


def test_what_has_no_backward_says_the_line() -> None:
    """What is captured, and cannot be traced with its backward, says where, and what to do."""
    with pytest.raises(baechi.CompileError, match="not traced with its backward") as raised:
        pair(Asserts)
    assert "nets.py:" in str(raised.value)
    assert "compile='auto'" in str(raised.value)


class Causal(nn.Module):
    """A decoder layer of torch; it is told that its mask is causal, or looks at the mask's values."""

    def __init__(self, *, told: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.stack, self.told = nn.TransformerEncoder(self.layer, 2, enable_nested_tensor=False), told

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        made: Tensor = self.stack(x, mask=mask, is_causal=True if self.told else None)
        return made.square().mean()


def test_a_mask_of_torch_is_said_to_be_causal() -> None:
    """Torch's own stacks compare the mask with a causal one, which the message says; told, they run."""
    x, cluster = torch.rand(4, 3, 8), baechi.Cluster.virtual(2)
    with pytest.raises(baechi.CompileError, match="whether a mask is causal, so say it"):
        baechi.distribute(Causal(told=False), x, cluster=cluster, placer="even", compile=EXACT)
    model = Causal(told=True)
    plain = copy.deepcopy(model)
    baechi.distribute(model, x, cluster=cluster, placer="even", compile=EXACT)
    with cluster:
        model(x).backward()
        assert programs(model)
    plain(x).backward()
    assert_same_gradients(model, plain)


class Passes(nn.Module):
    """Code that returns what it is given, beside what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.b(self.a(x))


def test_an_input_with_a_gradient_that_is_returned() -> None:
    """In microbatches no gradient came back to it; the code as it is written gives it."""
    x = torch.randn(8, 6, requires_grad=True)
    asked: dict[str, Any] = {"cluster": baechi.Cluster.virtual(2), "device_map": {"a": 0, "b": 1}}
    model = baechi.distribute(Passes(), x, microbatches=2, compile=EXACT, **asked)
    with asked["cluster"], pytest.raises(baechi.CompileError, match="returns an input that has a gradient"):
        model(x)
    model = baechi.distribute(Passes(), x, microbatches=2, compile=AUTO, **asked)
    with asked["cluster"]:
        same, made = model(x)
        (same * made.detach()).sum().backward()
    assert torch.equal(x.grad, made)
