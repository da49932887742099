"""What runs: a shard computes its share of a layer, a join makes one output of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from baechi.split.dimension import Compute, ShardRange, SplitDimension, SplitRule


class LayerShard(nn.Module):
    """A shard of a layer. It has no weights of its own: it is given its shards of these at each call.

    Args:
        compute: see `SplitRule`.
        dimension: along which the layer is split.
        extent: what of it is the shard's.
        options: the layer's attributes.
        weights: how many weights the layer may have.
    """

    def __init__(
        self, compute: Compute, dimension: str, extent: ShardRange, options: Mapping[str, Any], weights: int
    ) -> None:
        super().__init__()
        self.compute = compute
        self.weights = weights
        self.dimension = dimension
        self.extent = extent
        self.options = dict(options)

    def forward(self, x: Any, *weights: Any) -> Any:
        """The shard's output."""
        own = (*weights, *[None] * (self.weights - len(weights)))
        return self.compute(self.options, self.dimension, self.extent, x, *own)


class Broadcast(nn.Module):
    """Hands the weights of a layer to its shards, each of which takes rows: autograd adds what comes back."""

    def forward(self, *weights: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The same weights, as what this layer makes."""
        return tuple([None if weight is None else weight.view_as(weight) for weight in weights])


class Join(nn.Module):
    """Makes the output of a layer from those of its shards.

    Args:
        how: see `SplitDimension`.
    """

    def __init__(self, how: SplitDimension) -> None:
        super().__init__()
        self.joins = how.join
        self.axis = how.axis

    def forward(self, *outputs: Any) -> Any:
        """The layer's output."""
        if isinstance(outputs[0], tuple):
            columns = zip(*outputs, strict=True)
            return tuple([None if column[0] is None else self(*column) for column in columns])
        if self.joins == "cat":
            return torch.cat(outputs, self.axis)
        total = outputs[0]
        for output in outputs[1:]:
            total = total + output
        return total


def layer_shards(layer: nn.Module, rule: SplitRule, dimension: str, sizes: Sequence[int]) -> list[LayerShard]:
    """The shards of a layer."""
    options = {name: getattr(layer, name) for name in rule.options} | dict(rule.notes(layer))
    made, start, total = [], 0, sum(sizes)
    for size in sizes:
        made.append(
            LayerShard(
                rule.compute, dimension, ShardRange(start, start + size, total), options, len(rule.weights)
            )
        )
        start += size
    return made
