"""What the table says of an operator is what it does to shards, and to no more than these."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from baechi.errors import ShardedTensorError
from baechi.torchlib.shards.cut import cut
from baechi.torchlib.shards.table import Kind, kind_of
from baechi.torchlib.shards.weight import ShardedWeight

WHOLE = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
CALLS: dict[str, tuple[Kind | None, Callable[[Any], Any]]] = {
    "mul": ("each", lambda x: x * torch.arange(4.0)),
    "add": ("each", lambda x: x + torch.arange(5.0).unsqueeze(1)),
    "lerp": ("each", lambda x: torch.lerp(x, x * 2, 0.25)),
    "gelu": ("each", functional.gelu),
    "where": ("each", lambda x: torch.where(x > 0, x, 0.0)),
    "atan2": (None, lambda x: torch.atan2(x, x + 1)),
    "clone": ("alike", torch.clone),
    "view": ("view", lambda x: x.view(5, 4)),
    "sum": ("reduce", torch.sum),
    "norm": ("norm", torch.linalg.vector_norm),
}
ORDERS = [0, 0.5, 1, 2, 3, -1, float("inf"), -float("inf")]
REFUSED: dict[str, tuple[Kind | None, Callable[[Any], Any]]] = {
    "transpose": ("view", lambda x: x.transpose(0, 1)),
    "split": ("view", lambda x: x.split(2)),
    "cat": ("stack", lambda x: torch.cat([x, x], 1)),
    "matmul": ("other axes", lambda x: x @ torch.ones(4, 2)),
    "softmax": ("other axes", lambda x: x.softmax(-1)),
    "cross_entropy": ("loss", lambda x: functional.cross_entropy(x, torch.zeros(5, dtype=torch.long))),
    "cumsum": (None, lambda x: x.cumsum(0)),
}


def sharded() -> ShardedWeight:
    return cut(WHOLE, [2, 2, 1], 0, lambda view, number: view.clone())


@pytest.mark.parametrize("name", CALLS)
def test_shard_by_shard(name: str) -> None:
    """Values are those of the whole; what has its shape stays sharded as it was."""
    kind, call = CALLS[name]
    made, expected = call(sharded()), call(WHOLE)
    assert kind_of(name) == kind
    assert isinstance(made, ShardedWeight) is (expected.shape == WHOLE.shape)
    if isinstance(made, ShardedWeight):
        assert made.sizes == (2, 2, 1)
    torch.testing.assert_close(made.cpu(), expected)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("more", [{}, {"keepdim": True}, {"dtype": torch.float64}], ids=str)
def test_norms(order: float, more: dict[str, Any]) -> None:
    """Of every order, with their gradients; also where several values are the largest or the smallest."""
    whole = torch.where(WHOLE.abs() < 0.3, 0.0, WHOLE).clamp(-1, 1) if order > 0 else WHOLE.clone()
    weight = cut(whole, [2, 2, 1], 0, lambda view, number: view.clone())
    for one in (whole, weight):
        one.requires_grad_()
    made, expected = [torch.linalg.vector_norm(one, order, **more) for one in (weight, whole)]
    torch.testing.assert_close(made, expected)
    listed = torch._foreach_norm([weight], order)[0]  # what clipping calls
    torch.testing.assert_close(listed, torch.linalg.vector_norm(whole, order))
    if order:  # of order 0 there is none
        found = [torch.autograd.grad(norm.sum(), one)[0] for norm, one in ((made, weight), (expected, whole))]
        torch.testing.assert_close(found[0].cpu(), found[1])


def test_gradients_of_the_largest() -> None:
    """Where several values are the largest, all of them have a share."""
    weight, whole = sharded().clamp(-1, 1).detach(), WHOLE.clamp(-1, 1)
    for reduced in (torch.max, torch.amax, torch.amin):
        grads = [torch.autograd.grad(reduced(one.requires_grad_()), one)[0].cpu() for one in (weight, whole)]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """What an output does shard by shard, or joins for, a weight refuses."""
    kind, call = REFUSED[name]
    assert kind_of(name) == kind
    with pytest.raises(ShardedTensorError, match=r"baechi\.restore"):
        call(sharded())
