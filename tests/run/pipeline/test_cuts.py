"""A batch of a kind that was split before is divided as it would be by another look."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baechi import Inputs
from baechi.run.pipeline.batch.cuts import Cuts, kind_of
from baechi.run.pipeline.batch.partition import Parted, Split, parted


class Takes(nn.Module):
    """Its inputs have names."""

    def forward(self, x: Any, mask: Any = None, scale: Any = 1.0, flag: bool = False) -> Any:
        return x


def described(parts: Parted) -> Any:
    """All that a split says, with tensors as what is in them and which memory they show."""

    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.tolist(), value.data_ptr(), value.stride(), value.requires_grad, value.is_leaf
        return value

    each = [
        ([of(one) for one in part.args], {name: of(one) for name, one in part.kwargs.items()})
        for part in parts.parts
    ]
    leaves = [(id(whole), dim, [of(one) for one in ones]) for whole, dim, ones in parts.leaves]
    return each, parts.rows, leaves, parts.divided, parts.whole, parts.items


X, SQUARE = torch.arange(40.0).reshape(8, 5), torch.eye(5)
CASES: dict[str, tuple[Inputs, Split]] = {
    "rows": (Inputs(X), {}),
    "what goes whole": (Inputs(X, SQUARE), {}),
    "by name": (Inputs(X, mask=torch.ones(8), scale=2.0, flag=True), {}),
    "a parameter": (Inputs(nn.Parameter(X), None), {}),
    "gradients": (Inputs(X.clone().requires_grad_(), SQUARE.clone().requires_grad_()), {}),
    "one tensor twice": (Inputs(X, mask=X), {}),
    "one leaf twice": (Inputs(*[X.clone().requires_grad_()] * 2), {}),
    "another dimension": (Inputs(torch.ones(5, 8), torch.ones(8)), {"x": 1}),
    "whole, as is said": (Inputs(X, torch.ones(8)), {"mask": None}),
    "unlike strides": (Inputs(X.T.contiguous().T, torch.ones(())), {}),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
@pytest.mark.parametrize("name", list(CASES))
def test_the_same_parts(name: str, microbatches: int, grad: bool) -> None:
    """Cut again, a batch gives the parts of another look."""
    model, (inputs, split) = Takes(), CASES[name]
    with torch.set_grad_enabled(grad):
        looked = parted(model, inputs, microbatches, split)
        cuts = Cuts.learned(model, inputs, looked, split)
        assert cuts is not None and kind_of(model, inputs) is not None
        again = cuts.parted(inputs, microbatches)
        assert described(again) == described(looked)
        assert again.is_plain and not looked.is_plain


@pytest.mark.parametrize(
    "inputs",
    [
        Inputs([X, X]),
        Inputs({"x": X}),
        Inputs(X, object()),
        Inputs(torch.nested.nested_tensor([X, X])),
        Inputs(X.to_sparse()),
    ],
)
def test_what_has_no_kind(inputs: Inputs) -> None:
    """Each batch of containers, objects and other tensors is looked at."""
    assert kind_of(Takes(), inputs) is None


def test_what_tells_kinds_apart() -> None:
    """Shapes, names, and which values are tensors."""
    model = Takes()
    kinds = [
        kind_of(model, inputs)
        for inputs in (
            Inputs(X),
            Inputs(X[:4]),
            Inputs(X, X),
            Inputs(X, X + 1),
            Inputs(x=X),
            Inputs(X, None),
            Inputs(X, 1),
            Inputs(X, True),
            Inputs(X, torch.ones(8)),
            Inputs(X, mask=None),
        )
    ]
    assert len(set(kinds)) == len(kinds)
    assert kind_of(model, Inputs(X + 1)) == kinds[0]


def test_what_a_function_divides_is_not_learned() -> None:
    """It is asked each time."""
    split: Split = {"mask": lambda name, value, count: [value] * count}
    model, inputs = Takes(), Inputs(X, 3)
    assert Cuts.learned(model, inputs, parted(model, inputs, 2, split), split) is None
