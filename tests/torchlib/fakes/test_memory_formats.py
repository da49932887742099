"""Results lie as their kernels lay them out, whatever the order of the dimensions of what they are given."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchlib.fakes.by_kernels import ByKernels

from baechi.torchlib.fakes.kernels import valueless_like
from baechi.torchlib.tensors.storage import storage_bytes

SIZES = {3: (8, 16, 10), 4: (2, 16, 8, 6), 5: (2, 4, 3, 5, 6)}


def channels(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros(x.shape[1]), torch.ones(x.shape[1])


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "batch norm": lambda x: F.batch_norm(x, *channels(x)),
    "batch norm in training": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x, 2),
    "instance norm": F.instance_norm,
    "roll": lambda x: x.roll((1, 1), (1, 2)),
    "normal": lambda x: torch.normal(x, x.abs() + 0.1),
    "normal of one mean": lambda x: torch.normal(0.1, x),
    "rrelu": F.rrelu,
    "max_unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "max_unpool1d": lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2),
    "reflection_pad": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "softmax": lambda x: x.softmax(1),
    "dropout": F.dropout,
    "cat": lambda x: torch.cat([x, x], 1),
    "floor": lambda x: x.div(0.1, rounding_mode="floor"),
    "sort": lambda x: x.sort(1)[0],
}
ONLY = {"max_unpool": 4, "max_unpool1d": 3, "reflection_pad": 3}


def orders(size: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    """A tensor of a size, its dimensions in several orders in memory; parts, and one that is expanded."""
    dims = range(len(size))
    swapped = [*dims[:-2], dims[-1], dims[-2]]
    for name, order in {"as it is": dims, "reversed": dims[::-1], "swapped": swapped}.items():
        yield name, torch.rand([size[dim] for dim in order]).permute(*order)
    last = torch.rand([size[0], *size[2:], 2 * size[1]]).movedim(-1, 1)
    yield "part of channels last", last[:, : size[1]]
    yield "channels last", torch.rand([size[0], *size[2:], size[1]]).movedim(-1, 1)
    yield "expanded", torch.rand(1, *size[1:]).expand(size)


def look(tensor: Tensor) -> tuple[Any, ...]:
    """Sizes, strides (of dimensions that have several elements) and memory."""
    strides = [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return tuple(tensor.shape), strides, storage_bytes(tensor)


@pytest.mark.parametrize("dims", SIZES)
@pytest.mark.parametrize("name", OPERATORS)
def test_as_kernels_lay_them_out(name: str, dims: int) -> None:
    """Forward and backward, without values as with them."""
    if ONLY.get(name, dims) != dims:
        return
    for order, x in orders(SIZES[dims]):
        looks = []
        for values in (True, False):
            given = (x if values else valueless_like([x])[0]).requires_grad_()
            with ByKernels() if not values else nullcontext():
                made = OPERATORS[name](given * 1)
                grads = torch.autograd.grad(made, given, torch.ones_like(made)) if made.requires_grad else ()
            looks.append([look(one) for one in (made, *grads)])
        assert looks[0] == looks[1], order


def test_fold_keeps_the_columns() -> None:
    """Its kernel returns a part of memory that is as large as the columns."""
    columns = torch.rand(2, 144, 1024)
    with ByKernels():
        found = F.fold(valueless_like([columns])[0], 32, 3, padding=1)
    assert look(found) == look(F.fold(columns, 32, 3, padding=1))
