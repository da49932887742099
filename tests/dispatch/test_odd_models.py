"""Models and inputs as people have them: each is right, or is refused by name; none is silently wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dispatch.chunks_of import assert_close, small
from torch import nn

import baechi
from baechi import FatalError, Rows
from baechi.dispatch.merge.alone import Alone

pytestmark = pytest.mark.default_cases(2)

X = torch.randn(10, 8, generator=torch.Generator().manual_seed(0))
Forward = Callable[..., Any]


class Odd(nn.Module):
    """A layer, and any forward."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.body = nn.Linear(8, 4), forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self.layer, *args, **kwargs)


def called(forward: Forward, *args: Any, size: int = 3, chunks: Rows | None = None, out: Any = "auto") -> Any:
    with torch.no_grad():
        return baechi.dispatch(Odd(forward), small(size), chunks=chunks, out=out)(*args)


RIGHT: dict[str, tuple[Forward, tuple[Any, ...]]] = {
    "nested": (lambda f, x: {"a": f(x), "b": [x * 2, {"c": None, "d": "text", "e": 3}]}, (X,)),
    "nothing": (lambda f, x: None, (X,)),
    "its input and views of it": (lambda f, x: (x, x[:, :2], x.t()), (X,)),
    "its weight": (lambda f, x: (f.weight, f(x)), (X,)),
    "a constant": (lambda f, x: (f(x), f.bias.exp().sum(), 0.5), (X,)),
    "rows as a list": (lambda f, x: list(f(x)), (X,)),
    "flat": (lambda f, x: f(x).flatten(), (X,)),
    "sparse": (lambda f, x: x.relu().to_sparse(), (X,)),
    "writes its input": (lambda f, x: f(x.mul_(2)), (X,)),
    "a strided input": (lambda f, x: f(x), (X.t().contiguous().t(),)),
    "whole numbers": (lambda f, i: f.weight[0][i % 8], (torch.arange(10),)),
    "truth values": (lambda f, x: ~x, (X > 0,)),
    "complex numbers": (lambda f, x: x.conj() * 1j, (X.to(torch.complex64),)),
    "no rows": (lambda f, x: f(x), (X[:0],)),
    "no dimensions": (lambda f, x: x * 2, (X[0, 0],)),
    "no tensors": (lambda f: f.weight * 2, ()),
    "several dtypes": (lambda f, x: (x.half(), x.double(), x.argmax(1), x.topk(2)), (X,)),
}


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("name", RIGHT)
def test_odd_models_are_right(name: str, size: int) -> None:
    forward, args = RIGHT[name]
    copied = [arg.clone() for arg in args]
    with torch.no_grad():
        expected = Odd(forward)(*[arg.clone() for arg in args])
    found = called(forward, *copied, size=size)
    if isinstance(expected, torch.Tensor) and expected.layout != torch.strided:
        found, expected = found.to_dense(), expected.to_dense()
    assert_close(found, expected)


REFUSED: dict[str, tuple[Forward, tuple[Any, ...], str]] = {
    "counts rows": (lambda f, x: (f(x), len(x)), (X,), r"output '1'.*another for 1 row than for 5"),
    "counts values": (lambda f, x: torch.ones_like(x).sum(), (X,), r"another for 1 row than for 5"),
    "sorts rows": (lambda f, x: x.sort(0).values, (X,), r"row 4 has other values"),
    "adds rows up": (lambda f, x: x.cumsum(0), (X,), r"row 4 has other values"),
    "numbers rows": (lambda f, x: x + torch.arange(len(x))[:, None], (X,), r"row 4 has other values"),
    "compares rows": (lambda f, x: f(x).softmax(0), (X,), r"row 4 has other values"),
    "scales by all rows": (lambda f, x: x / x.abs().max(), (X,), r"row 4 has other values"),
    "writes what all chunks have": (
        lambda f, x, c: x + c.add_(1),
        (X, torch.zeros(1)),
        r"writes its argument",
    ),
    "sparse rows": (lambda f, x: x.to_dense(), (X.to_sparse(),), r"sparse_coo tensor, whose rows"),
    "names beside rows": (lambda f, d: d["x"], ({"x": X, "names": ["a"] * 10},), r"a list of 10, as many"),
    "numbers beside rows": (lambda f, x, y: x, (X, X.numpy()), r"a ndarray of 10, as many"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(name: str) -> None:
    """Five rows and five rows: the chunks themselves look alike."""
    forward, args, message = REFUSED[name]
    with pytest.raises(FatalError, match=message):
        called(forward, *args, size=5)


def test_each_row_is_looked_at_once_and_never_where_out_says_it() -> None:
    seen: list[int] = []

    def forward(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return layer(x)

    dispatched = baechi.dispatch(Odd(forward), small(4))
    with torch.no_grad():
        dispatched(X)
        assert seen == [4, 4, 2, 1, 1]  # the last of the first four alone, and the first
        dispatched(X)
        assert seen[5:] == [4, 4, 2]
    seen.clear()
    called(forward, X, size=4, out="cat")
    assert sorted(set(seen)) == [2, 4]
    assert torch.equal(called(lambda f, x: x.cumsum(0), X, size=5, out=("cat", 0))[5:], X[5:].cumsum(0))


OF_OTHERS: dict[str, Callable[..., Any]] = {
    "the last row": lambda layer, x: layer(x) - layer(x)[-1:],
    "rows that follow": lambda layer, x: layer(x).flip(0).cumsum(0).flip(0),
    "calls before": lambda layer, x: layer(x) * counted(layer),
}


def counted(layer: Any) -> int:
    """How often it was called, kept in an attribute."""
    layer.calls = getattr(layer, "calls", 0) + 1
    return int(layer.calls)


@pytest.mark.parametrize("which", OF_OTHERS)
def test_rows_that_the_last_one_does_not_tell_of(which: str) -> None:
    """The first row of a chunk is looked at, too, and after the last one."""
    with pytest.raises(FatalError, match=r"row [03] has other values"):
        called(OF_OTHERS[which], X, size=4)


def test_a_call_of_another_sort_is_looked_at_again() -> None:
    """Words and numbers among the arguments may choose another path."""

    def forward(layer: nn.Linear, x: torch.Tensor, how: str) -> Any:
        return layer(x) if how == "by rows" else x.softmax(0)

    dispatched = baechi.dispatch(Odd(forward), small(5))
    with torch.no_grad():
        dispatched(X, "by rows")
        with pytest.raises(FatalError, match="row 4 has other values"):
            dispatched(X, "together")


def test_a_count_and_a_constant_look_alike_where_the_model_does_not_run() -> None:
    """As in the caller of worker processes: a row alone runs without values there."""
    alone = Alone({"scale": torch.empty((), device="meta")}, row=4, rows=1, chunk=5)
    assert "look alike" in alone.contradicts(alone.result["scale"], torch.ones(()), None)
    assert not alone.contradicts(torch.empty(1, 4, device="meta"), torch.ones(5, 4), 0)


def test_lists_and_arrays_are_sliced_where_split_says_so() -> None:
    def forward(layer: nn.Linear, given: dict[str, Any]) -> list[tuple[str, float]]:
        assert len(given["x"]) == len(given["names"]) == len(given["more"][0])
        return list(zip(given["names"], given["more"][0].tolist(), strict=True))

    given = {"x": X, "names": list("abcdefghij"), "more": (np.arange(10.0),)}
    found = called(forward, given, chunks=Rows(split={"0": 0}))
    assert found == list(zip("abcdefghij", range(10), strict=True))


class Remembers(nn.Module):
    """Writes a buffer in its forward."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return x + self.seen


@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_written_buffers_come_home_from_one_chunk_and_are_refused_from_several(workers: Any) -> None:
    cluster = baechi.Cluster.virtual(2)
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), Remembers()).train()
    twin = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), Remembers()).train()
    twin.load_state_dict(net.state_dict())
    with cluster, torch.no_grad():
        dispatched = baechi.dispatch(net, baechi.SimpleScheduler("cpu:1"), workers=workers)
        for found in (dispatched(X), *dispatched.stream([X, X])):
            assert_close(found, twin(X))
        assert_close(net.state_dict(), twin.state_dict())
        net.eval()
        for devices in (baechi.SimpleScheduler("cpu:1", 5), baechi.HybridScheduler(cluster, 10)):
            with pytest.raises((FatalError, baechi.AggregateError)) as raised:
                list(baechi.dispatch(net, devices, workers=workers).stream([X, X]))
            first = getattr(raised.value, "exceptions", [raised.value])[0]
            assert "writes its buffer '2.seen'" in str(first)


class Replaces(nn.Module):
    """Replaces a buffer in training, by a mean that moves."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("positions", torch.arange(2), persistent=False)
        self.register_buffer("ones", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.positions = torch.arange(len(x))  # a cache: of another length, and the same for all
        self.ones = torch.ones(8)  # made anew, and the same
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean if not self.training else x * 1.0


@pytest.mark.parametrize("workers", ["inline", "thread"])
def test_replaced_buffers_come_home_from_one_chunk_and_are_refused_from_several(workers: Any) -> None:
    cluster = baechi.Cluster.virtual(2)
    net, twin = Replaces(), Replaces()
    with cluster, torch.no_grad():
        dispatched = baechi.dispatch(net, baechi.SimpleScheduler("cpu:1"), workers=workers)
        for found in (dispatched(X), *dispatched.stream([X, X])):
            assert_close(found, twin(X))
        assert_close(net.mean, twin.mean)
        net.mean.mul_(2)
        twin.mean.mul_(2)
        assert_close(dispatched.eval()(X), twin.eval()(X))
        for devices in (baechi.SimpleScheduler("cpu:0", 5), baechi.HybridScheduler(cluster, 5)):
            several = baechi.dispatch(net.eval(), devices, workers=workers)
            assert_close(several(X), twin(X))
            net.train()
            with pytest.raises((FatalError, baechi.AggregateError)) as raised:
                several(X)
            first = getattr(raised.value, "exceptions", [raised.value])[0]
            assert "writes its buffer 'mean'" in str(first)


def test_statistics_of_a_batch_that_a_function_takes() -> None:
    """They refuse a single row, so two rows are compared."""

    def forward(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(layer(x), None, None, training=True)

    with pytest.raises(FatalError, match=r"row 0 has other values .* where 2 rows run than where 5 do"):
        called(forward, X, size=5)
