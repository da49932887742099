"""A tensor that is sharded along one axis: its shards lie one after the other, each on its device.

    one object, one shape                axis 0
       ├── shards[0]   rows 0 to 3        on device 0
       ├── shards[1]   rows 4 to 7        on device 1
       └── shards[2]   rows 8 to 9        on device 2

What an operator does to shards is in `table`. Who records its history is what two kinds differ in:

    ShardedWeight (`weight`)         the tensor itself: below autograd     else refused: no device may hold it
    ShardedOutput (`run.sharded`)    each shard: above autograd            else joined first
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Self

import torch

from baechi.torchlib.private.tensors import TensorBase, make_wrapper
from baechi.torchlib.tensors.layout import contiguous_strides


class ShardedTensor(torch.Tensor):
    """A tensor in shards.

    Args:
        shards: tensors, alike but for their sizes along the axis.
        axis: the axis along which they lie one after the other, from the front or from the end.
        requires_grad: whether it says that it requires a gradient.

    Attributes:
        shards: as given.
        axis: as given, not negative.
        lies: shape, axis, and how long each shard is: what two tensors have alike that are cut at the same
            places. It is asked for at each operation, so it is kept.
    """

    shards: list[torch.Tensor]
    axis: int
    lies: tuple[tuple[int, ...], int, tuple[int, ...]]

    @staticmethod
    def __new__(cls, shards: Sequence[torch.Tensor], axis: int, *, requires_grad: bool = False) -> Self:
        first = shards[0]
        shape = list(first.shape)
        axis %= len(shape)
        sizes = tuple([shard.shape[axis] for shard in shards])
        shape[axis] = sum(sizes)
        made: Self = make_wrapper(
            cls,
            shape,
            strides=contiguous_strides(shape),
            dtype=first.dtype,
            device=TensorBase.device.__get__(first),
            requires_grad=requires_grad,
        )
        made.shards, made.axis, made.lies = list(shards), axis, (tuple(shape), axis, sizes)
        return made

    @property
    def sizes(self) -> tuple[int, ...]:
        """How long each shard is along the axis."""
        return self.lies[2]

    def axis_in(self, other: torch.Tensor) -> int | None:
        """The axis along which another tensor is cut beside this one; None if it goes whole to each shard."""
        axis = self.axis + other.dim() - len(self.lies[0])
        return None if axis < 0 or other.dim() == 0 or other.shape[axis] == 1 else axis

    def each(
        self,
        func: Callable[..., Any],
        args: Any,
        kwargs: Any,
        beside: Callable[[torch.Tensor], Sequence[Any]],
    ) -> list[Any]:
        """What a function makes of each shard, and of what of its other arguments goes with it."""

        def column(value: Any) -> Sequence[Any]:
            if isinstance(value, kind):  # shards of another kind have another history, or none
                return value.shards
            return beside(value) if isinstance(value, torch.Tensor) else [value] * number

        number, kind = len(self.shards), type(self)
        rows = zip(*map(column, args), strict=True) if args else repeat((), number)
        if not kwargs:
            return [func(*row) for row in rows]
        columns = zip(*map(column, kwargs.values()), strict=True)
        return [
            func(*row, **dict(zip(kwargs, named, strict=True)))
            for row, named in zip(rows, columns, strict=True)
        ]


def plain_parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The shards of a sharded tensor; of a plain one itself."""
    return tensor.shards if isinstance(tensor, ShardedTensor) else (tensor,)


def together(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """What was made of each shard, in one plain tensor on the device of the first."""
    home = values[0].device
    return torch.stack([value.to(home) for value in values])


def norm_of_norms(norms: Sequence[torch.Tensor], order: float) -> torch.Tensor:
    """The norm of a whole from those of its shards; of order 0 it is how many values are not zero."""
    return together(norms).sum() if order == 0 else torch.linalg.vector_norm(together(norms), order)
