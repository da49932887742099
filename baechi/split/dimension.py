"""What can be split of a layer's class: its dimensions by name, and how shards along each are joined.

    Linear, along "out"                          Linear, along "in"
    x ──▶ shard 0: rows 0 to 3  ──┐               x[.., 0:4] ──▶ shard 0: columns 0 to 3, bias ──┐
    x ──▶ shard 1: rows 4 to 7  ──┴─▶ cat         x[.., 4:8] ──▶ shard 1: columns 4 to 7 ────────┴─▶ sum

Nothing here needs torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class SplitDimension:
    """A dimension along which a layer can be split.

    Args:
        cuts: by weight, the axis that is cut. Weights that are not cut go whole to the first shard, so they
            may only be added. Where none is cut, shards take rows of the input (`takes`), and each is sent
            the weights whole.
        join: whether the shards' outputs are concatenated (`"cat"`) or added (`"sum"`).
        axis: along which axis outputs are concatenated; from the end, so that batches may have any number of
            dimensions.
        takes: the axis of the input of which each shard takes its share; None where each takes all of it.
        length: the layer's attribute that says how long the dimension is, if it is not as long as the axis
            that is cut (attention has as many `num_heads`).
        values: by weight, of how many equal values it consists, one after the other along its axis. A shard
            has its share of each (of queries, keys and values).
    """

    cuts: Mapping[str, int]
    join: Literal["cat", "sum"]
    axis: int = -1
    takes: int | None = None
    length: str = ""
    values: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardRange:
    """What one shard of a layer computes of it.

    Args:
        start: where it begins along the dimension.
        stop: where it ends.
        size: how long the whole is.
    """

    start: int
    stop: int
    size: int

    @property
    def is_first(self) -> bool:
        """Whether it begins where the whole begins."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends where the whole ends."""
        return self.stop == self.size

    def within(self, length: int) -> tuple[int, int]:
        """Where it begins and ends in an input: in proportion, if a batch has other rows than the example."""
        return self.start * length // self.size, self.stop * length // self.size


Compute = Callable[..., Any]
"""`compute(options, dimension, shard, x, *weights)`: a shard's output. Of a weight that consists of several
values it is given a tuple; `x` is a `Given` where the layer takes more than one tensor."""


@dataclass(frozen=True)
class SplitRule:
    """How a class of layers is split.

    Args:
        dims: by name, what can be split; the first one is taken where none is named.
        weights: the layer's weights, in the order in which `compute` takes them; one that is not there is
            None.
        compute: a function of a module (so that models can be pickled): a shard's output.
        options: the layer's attributes that `compute` or `refuses` needs, read at each call.
        refuses: from a layer to the reason why it cannot be split; empty if it can.
        notes: from a layer to more options, which are no attributes of it, noted when the layer is split.
        takes_all: whether the layer takes more than one tensor. `compute` is given all of its arguments then,
            and shards may return tuples, of which each tensor is added.
    """

    dims: Mapping[str, SplitDimension]
    weights: Sequence[str]
    compute: Compute
    options: Sequence[str] = ()
    refuses: Callable[[Any], str] = field(default=lambda layer: "")
    notes: Callable[[Any], Mapping[str, Any]] = field(default=lambda layer: {})
    takes_all: bool = False


class Given(NamedTuple):
    """What a layer was called with.

    Args:
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
