"""What autograd records between a weight in pieces and the work on each piece.

    forward    weight ──▶ pieces_of ──▶ piece 0 ──▶ work on device 0
                               └──────▶ piece 1 ──▶ work on device 1
    backward   weight.grad ◀── joined ◀── gradient 0, gradient 1: in pieces, each on its device

Each function is the other's backward, so gradients can be differentiated again.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from baechi.errors import SplitTensorError
from baechi.torchlib.private.autograd import call_after_backward
from baechi.torchlib.private.transforms import current_transform
from baechi.torchlib.split_tensors.streams import in_backward_on, streams_for
from baechi.torchlib.split_tensors.tensor import SplitTensor
from baechi.torchlib.streams import Streams, follow
from baechi.torchlib.tensors.weak_table import WeakTable

_pieces: WeakTable[bool] = WeakTable()
"""Leaves that are pieces of tensors."""


def pieces_of(tensor: SplitTensor) -> tuple[torch.Tensor, ...]:
    """The pieces of a tensor, differentiable if it is.

    Args:
        tensor: a tensor in pieces.

    Raises:
        SplitTensorError: torch.func transforms the code that asks.
    """
    if torch.is_grad_enabled() and tensor.requires_grad:
        if current_transform() is not None:
            raise SplitTensorError(
                "transforms of torch.func (vmap, grad, jacrev) do not go through weights in pieces: plan "
                "without split=, or transform the plain model, after baechi.restore(model)"
            )
        streams = streams_for(tensor)
        made: tuple[torch.Tensor, ...] = _Pieces.apply(tensor, streams)  # type: ignore[no-untyped-call]
        return tuple([_Home.apply(piece) for piece in made]) if streams else made  # type: ignore[no-untyped-call]
    return tuple([piece.detach() for piece in tensor.pieces])


def leaves_of(tensor: SplitTensor) -> tuple[torch.Tensor, ...]:
    """The pieces of a tensor, each a leaf of its own: what comes back to one is added to `tensor.grad` there.

    Where tiles go backward at different times, no node of autograd holds them together.

    Args:
        tensor: a tensor in pieces.
    """
    leaves = tuple([piece.detach() for piece in tensor.pieces])
    if torch.is_grad_enabled() and tensor.requires_grad:
        streams = streams_for(tensor)
        for number, leaf in enumerate(leaves):
            leaf.requires_grad_()
            _pieces.put(leaf, True)
            leaf.register_post_accumulate_grad_hook(functools.partial(_add, tensor, number, streams))
    return leaves


def is_piece(leaf: torch.Tensor) -> bool:
    """Whether a leaf is a piece of a tensor, to which its gradient goes.

    Args:
        leaf: a leaf.
    """
    return _pieces.get(leaf) is not None


def _add(tensor: SplitTensor, number: int, streams: Streams, leaf: torch.Tensor) -> None:
    grad, leaf.grad = leaf.grad, None
    if grad is None:
        return
    if tensor.grad is None:
        with in_backward_on(streams):
            made = [
                grad if index == number else torch.zeros_like(one) for index, one in enumerate(tensor.pieces)
            ]
        tensor.grad = tensor.like(made)
        return
    assert isinstance(tensor.grad, SplitTensor)
    with torch.no_grad():
        tensor.grad.pieces[number].add_(grad)


def joined(pieces: Sequence[torch.Tensor], axis: int) -> SplitTensor:
    """Tensors as one tensor in pieces, differentiable if they are.

    Args:
        pieces: alike but for their sizes along the axis.
        axis: the axis.
    """
    made: SplitTensor = _Joined.apply(axis, *pieces)  # type: ignore[no-untyped-call]
    return made


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: SplitTensor, streams: Streams) -> tuple[torch.Tensor, ...]:
        ctx.streams = streams
        ctx.save_for_backward(tensor)  # so that a write to it before backward raises
        ctx.set_materialize_grads(False)
        return tuple([piece.detach() for piece in tensor.pieces])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if all(grad is None for grad in grads):
            return None, None
        (tensor,) = ctx.saved_tensors
        pairs = zip(grads, tensor.pieces, strict=True)
        with in_backward_on(ctx.streams):
            filled = [torch.zeros_like(piece) if grad is None else grad for grad, piece in pairs]
        made = joined(filled, tensor.axis)
        if ctx.streams:
            made.streams = ctx.streams
            call_after_backward(functools.partial(follow, ctx.streams))
        return made, None


class _Home(torch.autograd.Function):
    """A piece itself. Its node is of the piece's device: the caller's stream there waits for the gradient."""

    @staticmethod
    def forward(ctx: Any, piece: torch.Tensor) -> torch.Tensor:
        return piece.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, axis: int, *pieces: torch.Tensor) -> SplitTensor:
        made = SplitTensor([piece.detach() for piece in pieces], axis)
        ctx.like = made.sizes, [piece.device for piece in pieces], made.axis
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        if grad is None:
            return (None,) * (1 + len(ctx.like[0]))
        if isinstance(grad, SplitTensor):
            return (None, *pieces_of(grad))
        sizes, devices, axis = ctx.like
        cut = grad.split(list(sizes), axis)
        return (None, *[one.to(device) for one, device in zip(cut, devices, strict=True)])
