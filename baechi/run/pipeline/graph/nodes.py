"""Autograd's nodes at the ends of a part's graph.

`Begin`   an alias or a copy of another part's tensor begins a graph
`Renew`   a tensor that was made elsewhere, and is about to be written, begins one, as the same object
`Adopt`   a tensor gets the history of its alias, which was written in its place
"""

from collections.abc import Callable
from typing import Any

import torch

from baechi.run.pipeline.graph.part import Cut


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, handle: torch.Tensor, box: list[torch.Tensor], cut: Cut) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.cut = cut
        return box.pop()  # in a box it is no input, so it becomes the output itself, and no view of it

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[None, None, None]:
        ctx.cut.grad = grads[0]
        return None, None, None


class _Renew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, handle: torch.Tensor, tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(tensor)
        ctx.cut = cut
        return tensor

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[None, None, None]:
        ctx.cut.grad = grads[0]
        return None, None, None


class _Adopt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, alias: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[None, torch.Tensor | None]:
        return None, grads[0]


# by the class of C: torch's own `apply` looks for transforms, and ours for waiting values; there are none
begin: Callable[[torch.Tensor, list[torch.Tensor], Cut], torch.Tensor]
begin = super(torch.autograd.Function, _Begin).apply
"""Begin a graph: from a handle, which requires a gradient and gets none; from a tensor without history, in a
list, which becomes the result; and from the cut, which gets the gradient."""

_renewed: Any = super(torch.autograd.Function, _Renew).apply
_adopted: Any = super(torch.autograd.Function, _Adopt).apply


def renew(handle: torch.Tensor, tensor: torch.Tensor, cut: Cut) -> None:
    """Begin a graph with a tensor that has a history: it stays the same object, with its views."""
    tensor.detach_()
    _renewed(handle, tensor, cut)


def adopt(tensor: torch.Tensor, alias: torch.Tensor) -> None:
    """Give a tensor the history of an alias: of the same memory, which was written."""
    tensor.detach_()
    _adopted(tensor, alias)
