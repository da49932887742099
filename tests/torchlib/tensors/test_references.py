"""Who else has a tensor: a variable, a view, a graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from baechi.torchlib.tensors.references import is_last_reference


def graph(tensor: Tensor) -> Any:
    """A graph that saved it, and nothing in Python."""
    return (torch.ones(3, requires_grad=True) * tensor).grad_fn


@pytest.mark.parametrize(
    "other",
    [lambda x: x, lambda x: [x], lambda x: x[1:], lambda x: x.detach(), graph],
    ids=["variable", "list", "view", "alias", "graph"],
)
def test_it_is_held_elsewhere(other: Callable[[Tensor], Any]) -> None:
    """Something else has the tensor or its memory; when that is gone, the reference is the last one."""
    box = [torch.ones(3)]
    kept = [other(box[0])]
    before = is_last_reference(box[0])
    kept.clear()
    after = is_last_reference(box[0])
    assert (before, after) == (False, True)
