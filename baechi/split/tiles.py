"""What runs: a tile computes its share of a layer, a join makes one output of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from baechi.split.dimension import Compute, Share, SplitDimension, SplitRule


class Tile(nn.Module):
    """A tile of a layer. It has no weights of its own: it is given its pieces at each call.

    Args:
        compute: see `SplitRule`.
        dimension: along which the layer is split.
        share: what of it is the tile's.
        options: the layer's attributes.
        weights: how many weights the layer may have.
    """

    def __init__(
        self, compute: Compute, dimension: str, share: Share, options: Mapping[str, Any], weights: int
    ) -> None:
        super().__init__()
        self.compute = compute
        self.weights = weights
        self.dimension = dimension
        self.share = share
        self.options = dict(options)

    def forward(self, x: Any, *weights: Any) -> Any:
        """The tile's output.

        Args:
            x: the layer's input, or the tile's share of it; or all that the layer was given.
            *weights: its pieces, in the rule's order, as far as it has some.
        """
        own = (*weights, *[None] * (self.weights - len(weights)))
        return self.compute(self.options, self.dimension, self.share, x, *own)


class Join(nn.Module):
    """Makes the output of a layer from those of its tiles.

    Args:
        how: see `SplitDimension`.
    """

    def __init__(self, how: SplitDimension) -> None:
        super().__init__()
        self.joins = how.join
        self.axis = how.axis

    def forward(self, *outputs: Any) -> Any:
        """The layer's output.

        Args:
            *outputs: of the tiles; of tuples, each tensor is joined by itself.
        """
        if isinstance(outputs[0], tuple):
            columns = zip(*outputs, strict=True)
            return tuple([None if column[0] is None else self(*column) for column in columns])
        if self.joins == "cat":
            return torch.cat(outputs, self.axis)
        total = outputs[0]
        for output in outputs[1:]:
            total = total + output
        return total


def tiles_of(layer: nn.Module, rule: SplitRule, dimension: str, sizes: Sequence[int]) -> list[Tile]:
    """The tiles of a layer.

    Args:
        layer: the layer.
        rule: how its class is split.
        dimension: along which dimension.
        sizes: how long each tile is.
    """
    options = {name: getattr(layer, name) for name in rule.options} | dict(rule.notes(layer))
    made, start, total = [], 0, sum(sizes)
    for size in sizes:
        made.append(
            Tile(rule.compute, dimension, Share(start, start + size, total), options, len(rule.weights))
        )
        start += size
    return made
