"""Rows: chunks equal the whole, whatever holds the tensors; what is broadcast, and what is refused."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from dispatch.chunks_of import assert_close, mlp, small
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import baechi


class Calls(nn.Module):
    """A function of any arguments around one layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.function = mlp(), function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.layer, *args, **kwargs)


class Pair(NamedTuple):
    """Two outputs."""

    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Output:
    """Outputs with attributes."""

    logits: torch.Tensor
    label: str = "one"


def x(rows: int = 10) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows))


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "keyword": (lambda f, *, x: f(x), (), {"x": x()}),
    "positional and keyword": (lambda f, a, *, b, scale: f(a + b) * scale, (x(),), {"b": x(), "scale": 2.0}),
    "broadcast row": (lambda f, a, b: f(a + b), (x(), x(1)), {}),
    "broadcast number": (lambda f, a, b: f(a) * b, (x(), torch.tensor(2.0)), {}),
    "nested input": (lambda f, d: f(d["a"][0] + d["b"]), ({"a": (x(), None), "b": x()},), {}),
    "list of tensors": (lambda f, held: f(held[0] + held[1]), ([x(), x()],), {}),
    "the same tensor twice": (lambda f, a, b: f(a) if a is b else None, ((same := x()), same), {}),
    "tuple": (lambda f, a: (f(a), a.argmax(1)), (x(),), {}),
    "named tuple": (lambda f, a: Pair(f(a), a), (x(),), {}),
    "dict": (lambda f, a: {"y": f(a), "deep": {"z": [a, None, "text", 3]}}, (x(),), {}),
    "ordered dict": (lambda f, a: OrderedDict(b=f(a), a=a), (x(),), {}),
    "dataclass": (lambda f, a: Output(f(a)), (x(),), {}),
    "list by row": (lambda f, a: [{"box": row} for row in f(a)], (x(),), {}),
    "grows elsewhere": (lambda f, a: f(a).t(), (x(),), {}),
    "in proportion": (lambda f, a: f(a).repeat_interleave(2, 0), (x(),), {}),
    "constant": (lambda f, a: (f(a), torch.arange(5)), (x(),), {}),
    "integers": (lambda f, a: a * 2, (torch.arange(20).view(10, 2),), {}),
    "double": (lambda f, a: a.cos(), (x().double(),), {}),
    "one row": (lambda f, a: f(a), (x(1),), {}),
    "no rows": (lambda f, a: f(a), (x(0),), {}),
    "no batch": (lambda f, a: a * 2, (torch.tensor(2.0),), {}),
    "no tensors": (lambda f, text: text.upper(), ("a",), {}),
}


@pytest.mark.parametrize("size", [3, 5, 10, 0])
@pytest.mark.parametrize("case", CASES)
def test_chunks_equal_the_whole(case: str, size: int) -> None:
    function, args, kwargs = CASES[case]
    model = Calls(function)
    with torch.no_grad():
        found, expected = baechi.dispatch(model, small(size))(*args, **kwargs), model(*args, **kwargs)
    assert_close(found, expected)


def test_the_whole_input_on_its_own_device_is_one_call_of_the_model() -> None:
    """No slice, no copy: the model gets the very tensor."""
    seen: list[Any] = []
    model = Calls(lambda f, a: seen.append(a) or f(a))
    given = x()
    for scheduler in (None, small(0), small(10), small(11)):
        seen.clear()
        baechi.dispatch(model, scheduler)(given)
        assert len(seen) == 1
        assert seen[0] is given


def test_slices_are_views_and_cover_each_row_once() -> None:
    seen: list[torch.Tensor] = []
    model = Calls(lambda f, a: seen.append(a) or a)
    given = x()
    baechi.dispatch(model, small(4), out=("cat", 0))(given)
    assert torch.equal(torch.cat(seen), given)
    assert all(part.untyped_storage().data_ptr() == given.untyped_storage().data_ptr() for part in seen)


def test_another_dimension_and_arguments_by_name() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, words: list[str]) -> Any:
            return x * mask.sum(), [word.upper() for word in words]

    given, mask, words = torch.randn(4, 10), torch.ones(7), [str(i) for i in range(10)]
    chunks = baechi.Rows(dim=1, split={"mask": None, "words": 0})
    found = baechi.dispatch(Attention(), small(3), chunks=chunks)(given, mask, words)
    assert_close(found, Attention()(given, mask, words))


def test_the_chunks_size_binds_the_scheduler() -> None:
    seen: list[int] = []
    model = Calls(lambda f, a: seen.append(len(a)) or a)
    baechi.dispatch(model, small(8), chunks=baechi.Rows(size=4), out="cat")(x())
    assert seen == [4, 4, 2]


@pytest.mark.parametrize(
    ("function", "args", "split", "message"),
    [
        (lambda f, a, b: f(a), (x(), x(7)), {}, "argument '1' has 7 rows"),
        (lambda f, a, words: f(a), (x(), list("abcdefghij")), {}, "a list of 10, as many as there are rows"),
        (lambda f, a: f(a), (x(),), {"b": 0}, "split names b"),
        (lambda f, a: a, (pack_padded_sequence(torch.randn(5, 10, 2), torch.full((10,), 5)),), {}, "Packed"),
    ],
)
def test_refusals_name_the_argument(
    function: Any, args: tuple[Any, ...], split: dict[str, Any], message: str
) -> None:
    with pytest.raises(baechi.FatalError, match=message):
        baechi.dispatch(Calls(function), small(3), chunks=baechi.Rows(split=split))(*args)


def test_a_model_that_looks_at_other_rows_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).train()
    with pytest.raises(baechi.FatalError, match=r"layer 1 \(BatchNorm1d\) normalizes over all rows"):
        baechi.dispatch(model, small())(x())
    assert_close(baechi.dispatch(model.eval(), small())(x()), model(x()))
    with pytest.raises(ValueError, match="at least one row"):
        baechi.Rows(size=0)
