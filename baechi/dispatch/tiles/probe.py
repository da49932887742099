"""Runs a model on small planes, and sees which outputs change with a pixel.

Each pixel (with all of its line, or plane, across) is changed in three ways: to NaN, which spreads through
sums and maxima, and by a large step up and down, since `where` and `nan_to_num` swallow NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.backend import unwatched
from baechi.dispatch.chunks.abstract import Arguments, Subject
from baechi.dispatch.tiles.footprint import Footprint, Footprints
from baechi.errors import FatalError
from baechi.torchlib.modules.as_found import left_as_found
from baechi.torchlib.random_state import random_states
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

_AT_ONCE = 16
"""How many changed pixels are stacked along the batch, where the model has one."""

_STEP = 8.0

Change = Callable[[torch.Tensor, torch.Tensor], object]


class Probe:
    """A model on planes cut from a real input.

    Args:
        subject: the model.
        arguments: the arguments of a call.
        dims: the dimensions of the plane, from the last one (-1) on.
    """

    def __init__(self, subject: Subject, arguments: Arguments, dims: Sequence[int]) -> None:
        self.model, self.dims = subject.model(), tuple(dims)
        self._arguments = arguments
        self.extents = extents_of(arguments, dims)
        weight = next(self.model.parameters(), None)
        self._device = None if weight is None else weight.device
        tensors = list(tensors_in(arguments))
        self._stacks = all(self._is_tiled(t) and t.dim() > len(self.dims) + 1 for t in tensors)

    def _is_tiled(self, tensor: torch.Tensor) -> bool:
        return is_tiled(tensor, self.extents, self.dims)

    def run(self, begins: Sequence[int], lengths: Sequence[int]) -> list[torch.Tensor]:
        """The outputs for a window of the input."""
        return self._outputs(self._window(begins, lengths))

    def _window(self, begins: Sequence[int], lengths: Sequence[int]) -> Arguments:
        def cut(tensor: torch.Tensor) -> torch.Tensor:
            if self._is_tiled(tensor):
                tensor = tensor[:1] if self._stacks else tensor  # one plane shows it as well as many
                for dim, begin, length in zip(self.dims, begins, lengths, strict=True):
                    tensor = tensor.narrow(dim, begin, length)
            tensor = tensor.detach()
            return tensor.clone() if self._device is None else tensor.to(self._device, copy=True)

        with unwatched():
            args, kwargs = map_tensors(cut, self._arguments)
        return args, kwargs

    def _outputs(self, arguments: Arguments) -> list[torch.Tensor]:
        args, kwargs = arguments
        with unwatched(), torch.no_grad(), left_as_found(self.model, contents="no parameters"):
            before = random_states()
            found = list(tensors_in(self.model(*args, **kwargs)))
            if random_states() != before:
                raise FatalError(
                    "the model draws random numbers, and tiles that overlap would draw others: call .eval()"
                )
        for index, tensor in enumerate(found):
            if tensor.dim() < max(-dim for dim in self.dims):
                raise FatalError(
                    f"output {index} of shape {tuple(tensor.shape)} has no dimensions {self.dims}: tiles "
                    "are for models that return planes; divide the input with baechi.Rows"
                )
        if not found:
            raise FatalError("the model returns no tensor: there is nothing to put together from tiles")
        return found

    def footprints(
        self, axis: int, lengths: Sequence[int], pixels: Sequence[int]
    ) -> tuple[list[Footprints], list[int]]:
        """Which outputs change with pixels."""
        plain = self._window([0] * len(self.dims), lengths)
        at_once = _AT_ONCE if self._stacks else 1
        whole = [pixels[0]] * at_once  # as many planes as in the runs below: kernels may round by shape
        base, again = [
            self._outputs(self._changed(plain, lengths, axis, whole, lambda *_: None)) for _ in range(2)
        ]
        if not all(_same(one, other).all() for one, other in zip(base, again, strict=True)):
            raise FatalError("the model returns other values for equal inputs: tiles cannot equal the whole")
        changes = _changes(next(t for t in tensors_in(plain) if self._is_window(t, lengths)))
        found: list[dict[int, Footprint]] = [{} for _ in base]
        for first in range(0, len(pixels), at_once):
            some = [*pixels[first : first + at_once], *whole][:at_once]
            for change in changes:
                outputs = self._outputs(self._changed(plain, lengths, axis, some, change))
                for footprints, output, before in zip(found, outputs, base, strict=True):
                    changed = (~_same(output, before)).tensor_split(at_once)
                    for pixel, part in zip(some, changed, strict=True):
                        seen = _extent(part, self.dims[axis])
                        footprints[pixel] = _union(footprints.get(pixel), seen)
        return list(found), [output.shape[self.dims[axis]] for output in base]

    def _is_window(self, tensor: torch.Tensor, lengths: Sequence[int]) -> bool:
        return is_tiled(tensor, lengths, self.dims)

    def _changed(
        self, plain: Arguments, lengths: Sequence[int], axis: int, pixels: Sequence[int], change: Change
    ) -> Arguments:
        """The plain window, once for each pixel, with that pixel changed."""

        def with_changes(tensor: torch.Tensor) -> torch.Tensor:
            if not self._is_window(tensor, lengths):
                return tensor
            copies = [tensor.clone() for _ in pixels]
            for copied, pixel in zip(copies, pixels, strict=True):
                change(copied.select(self.dims[axis], pixel), tensor)
            return torch.cat(copies) if len(copies) > 1 else copies[0]

        with unwatched():
            args, kwargs = map_tensors(with_changes, plain)
        return args, kwargs


def extents_of(arguments: Arguments, dims: Sequence[int]) -> tuple[int, ...]:
    """The size of the plane: that of the first tensor which has these dimensions."""
    for tensor in tensors_in(arguments):
        if tensor.dim() >= max(-dim for dim in dims):
            return tuple([tensor.shape[dim] for dim in dims])
    raise FatalError(f"no input has the dimensions {tuple(dims)} that tiles divide")


def is_tiled(tensor: torch.Tensor, extents: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether a tensor is divided: it has the plane's size."""
    has = tensor.dim() >= max(-dim for dim in dims)
    return has and tuple([tensor.shape[dim] for dim in dims]) == tuple(extents)


def _changes(example: torch.Tensor) -> list[Change]:
    if example.dtype == torch.bool:
        return [lambda pixel, _: pixel.copy_(~pixel)]
    if not (example.is_floating_point() or example.is_complex()):  # values that occur: they may be indices
        return [lambda pixel, given: pixel.fill_(given.max()), lambda pixel, given: pixel.fill_(given.min())]

    def step(times: float) -> Change:
        def by(pixel: torch.Tensor, all_of: torch.Tensor) -> None:
            pixel += times * _STEP * (1.0 + all_of.abs().max())

        return by

    def to_nan(pixel: torch.Tensor, _: torch.Tensor) -> None:
        pixel.fill_(float("nan"))

    if example.dtype in (
        torch.float16,
        torch.bfloat16,
    ):  # kernels pack pixels in pairs: NaN reaches the other
        return [step(1.0), step(-1.0), step(100.0)]
    return [to_nan, step(1.0), step(-1.0)]


def _same(one: torch.Tensor, other: torch.Tensor) -> Any:
    same = one == other
    if other.is_floating_point() or other.is_complex():
        same |= one.isnan() & other.isnan()
    return same


def _extent(changed: torch.Tensor, dim: int) -> Footprint:
    """First and last index along a dimension where something changed."""
    across = [other for other in range(-changed.dim(), 0) if other != dim]
    line = changed.any(dim=across) if across else changed
    where = line.nonzero().flatten()
    return (int(where[0]), int(where[-1])) if len(where) else None


def _union(one: Footprint, other: Footprint) -> Footprint:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])
