"""Who else has a tensor: a variable, a view, a graph."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from baechi.torchlib.tensors.references import is_last_reference


def graph(tensor: Tensor) -> Any:
    """A graph that saved it, and nothing in Python."""
    return (torch.ones(3, requires_grad=True) * tensor).grad_fn


def made(view: bool) -> Tensor:
    """A tensor, or the view of one that nothing else has."""
    return torch.ones(3, 1).view(3) if view else torch.ones(3)


@pytest.mark.parametrize("view", [False, True], ids=["tensor", "of a view"])
@pytest.mark.parametrize(
    "other",
    [lambda x: x, lambda x: [x], lambda x: x[1:], lambda x: x.detach(), graph],
    ids=["variable", "list", "view", "alias", "graph"],
)
def test_it_is_held_elsewhere(other: Callable[[Tensor], Any], view: bool) -> None:
    """Something else has the tensor or its memory; when that is gone, the reference is the last one."""
    box = [made(view)]
    kept = [other(box[0])]
    before = is_last_reference(box[0])
    kept.clear()
    after = is_last_reference(box[0])
    assert (before, after) == (False, True)


@pytest.mark.parametrize("other", [lambda x: x, lambda x: x[:2], graph], ids=["variable", "view", "graph"])
def test_its_base_is_held_elsewhere(other: Callable[[Tensor], Any]) -> None:
    """A view is not the last reference to its memory as long as anything else has what it is a view of."""
    base = torch.ones(3, 1)
    kept, box = [other(base)], [base.view(3)]
    del base
    before = is_last_reference(box[0])
    kept.clear()
    after = is_last_reference(box[0])
    assert (before, after) == (False, True)


def test_a_hook_of_frames_holds_nothing() -> None:
    """After torch.compile could not capture a function, who else has a tensor is still known."""
    code = """
import torch
from baechi.torchlib.tensors.references import is_last_reference

def breaks(x):
    torch._dynamo.graph_break()
    return x + 1

try:
    torch.compile(breaks, backend="eager", fullgraph=True)(torch.ones(2))
except torch._dynamo.exc.Unsupported:
    box = [torch.ones(3)]
    kept = [box[0]]
    before = is_last_reference(box[0])
    kept.clear()
    print(before, is_last_reference(box[0]))
"""
    # in a process of its own: the hook stays
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]
