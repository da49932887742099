"""What autograd records between a sharded weight and the work on each shard.

    forward    weight ──▶ shards_of ──▶ shard 0 ──▶ work on device 0
                               └──────▶ shard 1 ──▶ work on device 1
    backward   weight.grad ◀── joined ◀── gradient 0, gradient 1: in shards, each on its device

Each function is the other's backward, so gradients can be differentiated again.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from baechi.errors import ShardedTensorError
from baechi.torchlib.private.autograd import call_after_backward
from baechi.torchlib.private.transforms import current_transform
from baechi.torchlib.shards.streams import in_backward_on, streams_for
from baechi.torchlib.shards.weight import ShardedWeight
from baechi.torchlib.streams import Streams, follow
from baechi.torchlib.tensors.weak_table import WeakTable

_shards: WeakTable[bool] = WeakTable()
"""Leaves that are shards of tensors."""


def shards_of(tensor: ShardedWeight) -> tuple[torch.Tensor, ...]:
    """The shards of a tensor, differentiable if it is."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        if current_transform() is not None:
            raise ShardedTensorError(
                "transforms of torch.func (vmap, grad, jacrev) do not go through sharded weights: plan "
                "without split=, or transform the plain model, after baechi.restore(model)"
            )
        streams = streams_for(tensor)
        made: tuple[torch.Tensor, ...] = _Shards.apply(tensor, streams)  # type: ignore[no-untyped-call]
        return tuple([_Home.apply(shard) for shard in made]) if streams else made  # type: ignore[no-untyped-call]
    return tuple([shard.detach() for shard in tensor.shards])


def leaves_of(tensor: ShardedWeight) -> tuple[torch.Tensor, ...]:
    """The shards of a tensor, each a leaf of its own: what comes back to one is added to `tensor.grad` there.

    Where shards go backward at different times, no node of autograd holds them together.
    """
    leaves = tuple([shard.detach() for shard in tensor.shards])
    if torch.is_grad_enabled() and tensor.requires_grad:
        streams = streams_for(tensor)
        for number, leaf in enumerate(leaves):
            leaf.requires_grad_()
            _shards.put(leaf, True)
            leaf.register_post_accumulate_grad_hook(functools.partial(_add, tensor, number, streams))
    return leaves


def is_shard(leaf: torch.Tensor) -> bool:
    """Whether a leaf is a shard of a tensor, to which its gradient goes."""
    return _shards.get(leaf) is not None


def _add(tensor: ShardedWeight, number: int, streams: Streams, leaf: torch.Tensor) -> None:
    grad, leaf.grad = leaf.grad, None
    if grad is None:
        return
    if tensor.grad is None:
        with in_backward_on(streams):
            made = [
                grad if index == number else torch.zeros_like(one) for index, one in enumerate(tensor.shards)
            ]
        tensor.grad = tensor.like(made)
        return
    assert isinstance(tensor.grad, ShardedWeight)
    with torch.no_grad():
        tensor.grad.shards[number].add_(grad)


def joined(shards: Sequence[torch.Tensor], axis: int) -> ShardedWeight:
    """Tensors as one sharded tensor, differentiable if they are."""
    made: ShardedWeight = _Joined.apply(axis, *shards)  # type: ignore[no-untyped-call]
    return made


class _Shards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: ShardedWeight, streams: Streams) -> tuple[torch.Tensor, ...]:
        ctx.streams = streams
        ctx.save_for_backward(tensor)  # so that a write to it before backward raises
        ctx.set_materialize_grads(False)
        return tuple([shard.detach() for shard in tensor.shards])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if all(grad is None for grad in grads):
            return None, None
        (tensor,) = ctx.saved_tensors
        pairs = zip(grads, tensor.shards, strict=True)
        with in_backward_on(ctx.streams):
            filled = [torch.zeros_like(shard) if grad is None else grad for grad, shard in pairs]
        made = joined(filled, tensor.axis)
        if ctx.streams:
            made.streams = ctx.streams
            call_after_backward(functools.partial(follow, ctx.streams))
        return made, None


class _Home(torch.autograd.Function):
    """A shard itself. Its node is of the shard's device: the caller's stream there waits for the gradient."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor) -> torch.Tensor:
        return shard.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, axis: int, *shards: torch.Tensor) -> ShardedWeight:
        made = ShardedWeight([shard.detach() for shard in shards], axis)
        ctx.like = made.sizes, [shard.device for shard in shards], made.axis
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        if grad is None:
            return (None,) * (1 + len(ctx.like[0]))
        if isinstance(grad, ShardedWeight):
            return (None, *shards_of(grad))
        sizes, devices, axis = ctx.like
        cut = grad.split(list(sizes), axis)
        return (None, *[one.to(device) for one, device in zip(cut, devices, strict=True)])
