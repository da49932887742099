"""The function of C that stands for an operator calls that operator, with the same result."""

from typing import Any

import pytest
import torch

from baechi.torchlib.operators.bindings import binding_of

A = torch.ops.aten
X, W = torch.randn(3, 4), torch.randn(4, 4)

CASES: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "product": (A.mm.default, (X, W), torch.mm),
    "a method alone": (A.view.default, (X, [4, 3]), torch.Tensor.view),
    "that only calls others": (A.reshape.default, (X, [2, 6]), torch.reshape),
    "lists": (A.sum.dim_IntList, (X, [0], True), torch.sum),
    "a number": (A.pow.Tensor_Scalar, (X, 2.0), torch.pow),
    "in place": (A.add_.Tensor, (X, X), torch.Tensor.add_),
}


@pytest.mark.parametrize("name", CASES)
def test_stands_for_the_operator(name: str) -> None:
    target, args, function = CASES[name]
    found = binding_of(target, args, {})
    assert found in (function, getattr(torch._C.TensorBase, function.__name__))
    assert torch.equal(found(*[one.clone() if one is X else one for one in args]), target(*args))


def test_another_operator_of_that_name() -> None:
    """`torch.mul` with a number calls `mul.Tensor`: it does not stand for `mul.Scalar`."""
    for target, args in [(A.mul.Scalar, (X, 2.0)), (A.tanh_backward.default, (X, X))]:
        found = binding_of(target, args, {})
        assert found is not torch.mul and torch.equal(found(*args), target(*args))


def test_what_makes_a_tensor_is_called_as_it_is() -> None:
    found = binding_of(A.ones.default, ([2],), {"dtype": torch.float64, "device": torch.device("cpu")})
    made = found([2], dtype=torch.float64, device=torch.device("cpu"))
    assert found is not torch.ones and torch.equal(made, torch.ones(2, dtype=torch.float64))
