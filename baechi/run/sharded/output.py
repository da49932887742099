"""A sharded output: outputs of a layer's shards stay where they are, until something needs the whole.

    head[0] ──▶ shard 0, words 0..3  on device 0 ──┐
    head[1] ──▶ shard 1, words 4..7  on device 1 ──┼─▶ view, float, / 2: shard by shard ─▶ cross entropy
    head[2] ──▶ shard 2, words 8, 9  on device 2 ──┘         all else: joined first, then as ever

Shape and dtype are those of the whole. Once joined, the whole is what counts: it may be written in place.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.errors import BaechiError
from baechi.torchlib.placeholder import AbstractPlaceholder
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.shards.tensor import ShardedTensor
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import Mark, set_mark

Join = Callable[[Sequence[torch.Tensor], int], torch.Tensor]
"""Makes one tensor of shards along an axis."""

View = Callable[[torch.Tensor], torch.Tensor]


class ShardedOutput(AbstractPlaceholder, ShardedTensor):
    """A sharded tensor whose shards have a history each. Made by `sharded_output` only."""

    unseen = (
        "the output of a split layer, whose shards are on several devices",
        "Name base_device in its BatchSpec: then it is joined there",
    )
    join: Join
    """Joins the shards outside a step."""
    origin: "tuple[ShardedOutput, View | None] | None"
    """The output from which this one was made; and how, if it is a view of it."""
    whole: torch.Tensor | None
    used: bool
    """Whether a loss took the shards."""

    @classmethod
    def resolved(cls, values: Any, reason: str) -> Any:
        """Wholes in the place of sharded outputs, outside a step."""
        del reason
        return joined(values)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """In a file it is the whole."""
        return joined(self).__reduce_ex__(protocol)


def sharded_output(
    shards: Sequence[torch.Tensor],
    axis: int,
    join: Join,
    place: str | None,
    turn: int,
    origin: tuple[ShardedOutput, View | None] | None = None,
) -> ShardedOutput:
    """A sharded output."""
    with without_subclass_function():
        recorded = any(shard.requires_grad for shard in shards)
        made = ShardedOutput(shards, axis, requires_grad=recorded)
        set_mark(made, Mark(place, turn))
        if recorded:
            made.register_hook(_lost)  # type: ignore[no-untyped-call]
    made.join, made.origin, made.whole, made.used = join, origin, None, False
    return made


def is_joined(value: ShardedOutput) -> bool:
    """Whether the whole is what counts."""
    if value.whole is not None:
        return True
    before, view = value.origin or (None, None)
    return before is not None and view is not None and is_joined(before)


def note_use(value: ShardedOutput) -> None:
    """Note that a loss took the shards of an output, and of those from which it was made."""
    made: ShardedOutput | None = value
    while made is not None:
        made.used = True
        made = made.origin[0] if made.origin is not None else None


def whole_of(value: ShardedOutput, join: Join) -> torch.Tensor:
    """The whole of an output; the same tensor each time."""
    if value.whole is None:
        before, view = value.origin or (None, None)
        if before is not None and view is not None:
            value.whole = view(whole_of(before, join))
        else:
            value.whole = join(value.shards, value.axis)
        value.shards = []
    return value.whole


def joined(values: Any) -> Any:
    """Put wholes in the place of sharded outputs, outside a step."""
    return map_tensors(
        lambda tensor: whole_of(tensor, tensor.join) if isinstance(tensor, ShardedOutput) else tensor, values
    )


def settled(values: Any, backend: AbstractBackend, home: str | None) -> Any:
    """What of a model's outputs is sharded, when its step is over."""

    if ShardedOutput not in map(type, tensors_in(values)):  # most often
        return values

    def settle(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, ShardedOutput):
            return tensor
        tensor.join = functools.partial(join_at, backend, home or backend.place_of(tensor))
        return tensor if tensor.used and not is_joined(tensor) else whole_of(tensor, tensor.join)

    return map_tensors(settle, values)


def join_at(backend: AbstractBackend, place: str, shards: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    """Join shards on a device, outside a step."""
    here = [one if backend.place_of(one) == place else transfer(one, backend, place) for one in shards]
    with backend.at(place):
        return torch.cat(here, axis)


def _lost(grad: torch.Tensor) -> torch.Tensor:
    raise BaechiError(
        "a gradient reached the output of a split layer by a way that torch functions do not see, and would "
        "be lost. Name base_device in the layer's BatchSpec: then its output is joined there"
    )
