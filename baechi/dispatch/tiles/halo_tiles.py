"""Chunks of a plane: tiles with a halo, whose outputs are cropped, or blended."""

import itertools
import logging
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from baechi.dispatch.chunks.abstract import AbstractCall, AbstractChunks, Arguments, Subject
from baechi.dispatch.chunks.coupled_rows import refuse_coupled, training_flags
from baechi.dispatch.tiles.grid import Reach, Span, spans
from baechi.dispatch.tiles.probe import Probe, extents_of, is_tiled
from baechi.dispatch.tiles.reach import check_seam, reach_along, undivided
from baechi.dispatch.tiles.stitch import AbstractStitch, Blend, Crop
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

logger = logging.getLogger(__name__)

Size = int | Sequence[int]


class HaloTiles(AbstractChunks):
    """Divides planes into tiles, each with a halo of its real surroundings.

    With `stitch="crop"` the result equals that of the whole plane but for rounding: the halo is as wide as
    the model looks, which is found by changing single pixels, and windows begin on the model's grid. A model
    that looks at the whole plane is refused. Tensors that are not of the plane's size go whole to each tile.

    Args:
        size: pixels of a tile without its halo, for all dimensions or for each; rounded up to the model's
            grid.
        halo: pixels around a tile; `"auto"` finds them.
        stitch: `"crop"` takes of each tile what no halo can change; `"blend"` fades tiles into each other
            where they overlap, for models to which no halo is enough.
        dims: the dimensions of the plane, one to three, counted from the last.
        stride: the model's stride, if it cannot be seen.

    Raises:
        ValueError: a size is below 1, a halo below 0, or `dims` are not counted from the last.
    """

    def __init__(
        self,
        size: Size,
        halo: int | Literal["auto"] = "auto",
        stitch: Literal["crop", "blend"] = "crop",
        dims: Sequence[int] = (-2, -1),
        *,
        stride: int | None = None,
    ) -> None:
        self.dims = tuple(dims)
        if not 1 <= len(set(self.dims)) == len(self.dims) <= 3 or any(dim >= 0 for dim in self.dims):
            raise ValueError(f"dims is {dims!r}: one to three dimensions, counted from the last: (-2, -1)")
        self.sizes = (size,) * len(self.dims) if isinstance(size, int) else tuple(size)
        if len(self.sizes) != len(self.dims) or any(one < 1 for one in self.sizes):
            raise ValueError(f"size is {size!r}: at least 1 for each of the dimensions {self.dims}")
        if halo != "auto" and (isinstance(halo, bool) or not isinstance(halo, int) or halo < 0):
            raise ValueError(f"halo is {halo!r}: it takes 'auto', or a number of pixels")
        if stitch not in ("crop", "blend"):
            raise ValueError(f"there is no stitch {stitch!r}: 'crop' or 'blend'")
        if stride is not None and stride < 1:
            raise ValueError(f"stride is {stride!r}: it is at least 1")
        self.halo, self.stitch, self.stride = halo, stitch, stride
        self._known: weakref.WeakKeyDictionary[nn.Module, dict[Any, list[Reach]]] = (
            weakref.WeakKeyDictionary()
        )

    def open(self, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractCall:
        arguments = args, kwargs
        extents = extents_of(arguments, self.dims)
        fits = all(size >= extent for size, extent in zip(self.sizes, extents, strict=True))
        empty = any(is_tiled(t, extents, self.dims) and not t.numel() for t in tensors_in(arguments))
        if fits or empty:
            return _Whole(arguments)
        reaches = self._reaches(subject, arguments, extents)
        grid = [spans(*one) for one in zip(extents, self.sizes, reaches, strict=True)]
        stitch: AbstractStitch = Crop(self.dims, reaches, grid, extents)
        if self.stitch == "blend":
            stitch = Blend(self.dims, reaches, grid, extents)
        return _TilesCall(arguments, self.dims, extents, grid, stitch)

    def _reaches(self, subject: Subject, arguments: Arguments, extents: Sequence[int]) -> list[Reach]:
        """How far the model looks; asked once for a model and a sort of input."""
        model = subject.model()
        known = self._known.setdefault(model, {})
        sorts = [(t.dtype, t.dim(), is_tiled(t, extents, self.dims)) for t in tensors_in(arguments)]
        key = training_flags(model), tuple(extents), tuple(sorts)
        if key not in known:
            refuse_coupled(model)
            probe = Probe(subject, arguments, self.dims)
            halo = None if self.halo == "auto" else self.halo
            reaches = [
                undivided(probe, axis) if size >= extent else reach_along(probe, axis, halo, self.stride)
                for axis, (size, extent) in enumerate(zip(self.sizes, extents, strict=True))
            ]
            for dim, reach in zip(self.dims, reaches, strict=True):
                logger.info(
                    "dimension %d: halo %d before and %d after, on a grid of %d (%s)",
                    dim,
                    reach.before,
                    reach.after,
                    reach.stride,
                    "found" if halo is None else "said",
                )
            if halo is None and self.stitch == "crop":
                check_seam(probe, reaches, self.sizes)
            known[key] = reaches
        return known[key]

    def __repr__(self) -> str:
        return f"HaloTiles({self.sizes}, halo={self.halo!r}, stitch={self.stitch!r}, dims={self.dims})"


class _Whole(AbstractCall):
    """A plane no larger than a tile."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments, self._result = arguments, None
        self.total = 1

    def arguments(self, start: int, stop: int) -> list[Arguments]:
        return [self._arguments]

    def add(self, start: int, stop: int, results: list[Any]) -> None:
        self._result = results[0]

    def result(self) -> Any:
        return self._result

    def label(self, start: int, stop: int) -> str:
        return "the whole input"


class _TilesCall(AbstractCall):
    """A plane in tiles."""

    most = 1

    def __init__(
        self,
        arguments: Arguments,
        dims: Sequence[int],
        extents: Sequence[int],
        grid: Sequence[Sequence[Span]],
        stitch: AbstractStitch,
    ) -> None:
        self._arguments, self._dims, self._extents = arguments, dims, extents
        self._grid, self._stitch = grid, stitch
        self._tiles = list(itertools.product(*[range(len(along)) for along in grid]))
        self.total = len(self._tiles)

    def arguments(self, start: int, stop: int) -> list[Arguments]:
        return [self._window(self._tiles[index]) for index in range(start, stop)]

    def _window(self, tile: Sequence[int]) -> Arguments:
        def cut(tensor: torch.Tensor) -> torch.Tensor:
            if not is_tiled(tensor, self._extents, self._dims):
                return tensor
            for dim, along, index in zip(self._dims, self._grid, tile, strict=True):
                tensor = tensor.narrow(dim, along[index].begin, along[index].end - along[index].begin)
            return tensor

        args, kwargs = map_tensors(cut, self._arguments)
        return args, kwargs

    def add(self, start: int, stop: int, results: list[Any]) -> None:
        for index, result in zip(range(start, stop), results, strict=True):
            self._stitch.add(index, self._tiles[index], result)

    def result(self) -> Any:
        return self._stitch.result()

    def label(self, start: int, stop: int) -> str:
        begins = [along[index].begin for along, index in zip(self._grid, self._tiles[start], strict=True)]
        return f"tile {start} of {self.total}, whose window begins at {tuple(begins)}"
