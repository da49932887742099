"""One output out of the outputs of tiles."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from baechi.dispatch.tiles.grid import Reach, Span, ramp
from baechi.errors import FatalError
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in


class AbstractStitch(ABC):
    """Takes the outputs of tiles in, as they come.

    Args:
        dims: the dimensions of the plane.
        reaches: by dimension.
        grid: by dimension, the tiles along it.
        extents: the size of the input's plane.
    """

    def __init__(
        self,
        dims: Sequence[int],
        reaches: Sequence[Reach],
        grid: Sequence[Sequence[Span]],
        extents: Sequence[int],
    ) -> None:
        self._dims, self._reaches, self._grid = dims, reaches, grid
        self._lengths = [reach.length(extent) for reach, extent in zip(reaches, extents, strict=True)]
        self._like: Any = None
        self._outputs: list[torch.Tensor] = []

    @abstractmethod
    def add(self, index: int, tile: Sequence[int], result: Any) -> None:
        """Take in what a tile made.

        Args:
            index: counts tiles.
            tile: its place in the grid, by dimension.
            result: what the model returned.

        Raises:
            FatalError: its shape is not the expected one.
        """

    def result(self) -> Any:
        """The whole output."""
        outputs = iter(self._outputs)
        self._outputs = []
        return map_tensors(lambda _: next(outputs), self._like)

    def _made(self, result: Any) -> list[torch.Tensor]:
        """The tensors of a tile's output; with the first one the whole outputs are made."""
        tensors = list(tensors_in(result))
        if self._like is None:
            self._like = result
            self._outputs = [self._empty(tensor, index) for index, tensor in enumerate(tensors)]
        if len(tensors) != len(self._outputs):
            raise FatalError(f"a tile returns {len(tensors)} tensors, and the first one {len(self._outputs)}")
        return tensors

    def _empty(self, tensor: torch.Tensor, output: int) -> torch.Tensor:
        shape = list(tensor.shape)
        for dim, lengths in zip(self._dims, self._lengths, strict=True):
            shape[dim] = lengths[output]
        return tensor.new_zeros(shape)


class Crop(AbstractStitch):
    """Writes of each tile the part that its halo cannot change; each pixel is written once."""

    def add(self, index: int, tile: Sequence[int], result: Any) -> None:
        for output, tensor in enumerate(self._made(result)):
            target = self._outputs[output]
            for dim, along, place in zip(self._dims, self._grid, tile, strict=True):
                (first, last), skipped = along[place].written[output], along[place].skipped[output]
                if skipped + last - first > tensor.shape[dim]:
                    raise FatalError(
                        f"output {output} of a tile has {tensor.shape[dim]} pixels along dimension {dim}, "
                        f"and {skipped + last - first} were expected: its size does not grow evenly with "
                        "the input's"
                    )
                tensor = tensor.narrow(dim, skipped, last - first)
                target = target.narrow(dim, first, last - first)
            if target.numel():
                target.copy_(tensor)


class Blend(AbstractStitch):
    """Adds whole tiles up, weighted by ramps where they overlap, in the order of the tiles."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: dict[int, tuple[Sequence[int], Any]] = {}
        self._next = 0
        self._weights: list[torch.Tensor] = []

    def add(self, index: int, tile: Sequence[int], result: Any) -> None:
        self._waiting[index] = tile, result
        while self._next in self._waiting:  # sums depend on the order
            self._add(*self._waiting.pop(self._next))
            self._next += 1

    def _add(self, tile: Sequence[int], result: Any) -> None:
        for output, tensor in enumerate(self._made(result)):
            if not (tensor.is_floating_point() or tensor.is_complex()):
                raise FatalError(f"output {output} is {tensor.dtype}: only stitch='crop' takes that")
            if len(self._weights) == output:
                self._weights.append(torch.zeros_like(self._outputs[output]))
            target, weights = self._outputs[output], self._weights[output]
            weight = torch.ones((), dtype=tensor.dtype, device=tensor.device)
            for axis, place in enumerate(tile):
                dim, reach, along = self._dims[axis], self._reaches[axis], self._grid[axis]
                rate = reach.rates[output]
                line = ramp(along, place, output, rate, reach.stride)[: tensor.shape[dim]]
                start = along[place].begin // reach.stride * rate
                tensor = tensor.narrow(dim, 0, len(line))
                target = target.narrow(dim, start, len(line))
                weights = weights.narrow(dim, start, len(line))
                shape = [1] * tensor.dim()
                shape[dim] = len(line)
                weight = weight * torch.tensor(line, dtype=tensor.dtype, device=tensor.device).view(shape)
            target += tensor * weight
            weights += weight

    def result(self) -> Any:
        self._outputs = [output / weight for output, weight in zip(self._outputs, self._weights, strict=True)]
        return super().result()
