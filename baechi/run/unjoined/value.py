"""A value in parts: outputs of tiles that stay where they are, until something needs the whole.

    head[0] ──▶ part 0, words 0..3  on device 0 ──┐
    head[1] ──▶ part 1, words 4..7  on device 1 ──┼─▶ view, float, / 2: part by part ─▶ cross entropy
    head[2] ──▶ part 2, words 8, 9  on device 2 ──┘         all else: joined first, then as ever

Shape and dtype are those of the whole. Once joined, the whole is what counts: it may be written in place.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.backend import AbstractBackend
from baechi.backend.transfer import transfer
from baechi.errors import BaechiError
from baechi.torchlib.operators.functions import is_question
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.private.tensors import make_wrapper
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in
from baechi.torchlib.tensors.storage import Mark, set_mark

Join = Callable[[Sequence[torch.Tensor], int], torch.Tensor]
"""Makes one tensor of parts along an axis."""

View = Callable[[torch.Tensor], torch.Tensor]


class Unjoined(torch.Tensor):
    """A value in parts. Made by `unjoined` only."""

    parts: Sequence[torch.Tensor]
    axis: int
    join: Join
    """Joins the parts outside a step."""
    origin: "tuple[Unjoined, View | None] | None"
    """The value from which this one was made; and how, if it is a view of it."""
    whole: torch.Tensor | None
    used: bool
    """Whether a loss took the parts."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # reached outside a step only: a step's glue mode comes first
        if is_question(func):
            with without_subclass_function():
                return func(*args, **(kwargs or {}))
        args, kwargs = joined((args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise BaechiError(
            f"{func} was called on the output of a split layer, whose parts are on several devices, in a way "
            "that torch functions do not see. Name base_device in its BatchSpec: then it is joined there"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """In a file it is the whole."""
        return joined(self).__reduce_ex__(protocol)


def unjoined(
    parts: Sequence[torch.Tensor],
    axis: int,
    join: Join,
    place: str | None,
    turn: int,
    origin: tuple[Unjoined, View | None] | None = None,
) -> Unjoined:
    """A value in parts.

    Args:
        parts: alike but for their sizes along the axis.
        axis: the axis, from the front or from the end.
        join: joins them outside a step.
        place: the device that it says it lies on.
        turn: its place in the code's order.
        origin: the value from which it was made; and how, if it is a view of it.
    """
    with without_subclass_function():
        shapes, first = [list(part.shape) for part in parts], parts[0]
        axis %= len(shapes[0])
        shape = [*shapes[0][:axis], sum(one[axis] for one in shapes), *shapes[0][axis + 1 :]]
        made: Unjoined = make_wrapper(
            Unjoined,
            shape,
            dtype=first.dtype,
            device=first.device,
            requires_grad=any(part.requires_grad for part in parts),
        )
        set_mark(made, Mark(place, turn))
        if made.requires_grad:
            made.register_hook(_lost)  # type: ignore[no-untyped-call]
    made.parts, made.axis, made.join, made.origin = list(parts), axis, join, origin
    made.whole, made.used = None, False
    return made


def sizes_of(value: Unjoined) -> list[int]:
    """How long each part is.

    Args:
        value: a value in parts.
    """
    with without_subclass_function():
        return [part.shape[value.axis] for part in value.parts]


def is_joined(value: Unjoined) -> bool:
    """Whether the whole is what counts.

    Args:
        value: a value in parts.
    """
    if value.whole is not None:
        return True
    before, view = value.origin or (None, None)
    return before is not None and view is not None and is_joined(before)


def note_use(value: Unjoined) -> None:
    """Note that a loss took the parts of a value, and of those from which it was made.

    Args:
        value: a value in parts.
    """
    made: Unjoined | None = value
    while made is not None:
        made.used = True
        made = made.origin[0] if made.origin is not None else None


def whole_of(value: Unjoined, join: Join) -> torch.Tensor:
    """The whole of a value; the same tensor each time.

    Args:
        value: a value in parts.
        join: joins the parts.
    """
    if value.whole is None:
        before, view = value.origin or (None, None)
        if before is not None and view is not None:
            value.whole = view(whole_of(before, join))
        else:
            value.whole = join(value.parts, value.axis)
        value.parts = ()
    return value.whole


def joined(values: Any) -> Any:
    """Put wholes in the place of values in parts, outside a step.

    Args:
        values: anything; values in parts are found in lists, tuples and dicts.
    """
    return map_tensors(
        lambda tensor: whole_of(tensor, tensor.join) if isinstance(tensor, Unjoined) else tensor, values
    )


def settled(values: Any, backend: AbstractBackend, home: str | None) -> Any:
    """What of a model's outputs is in parts, when its step is over.

    Args:
        values: what the model returned.
        backend: the devices.
        home: where outputs go; None if they stay.

    Returns:
        The outputs. Those that a loss took stay in parts, until something uses them: joined, they would need
        the memory that the loss did without.
    """

    if Unjoined not in map(type, tensors_in(values)):  # most often
        return values

    def settle(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, Unjoined):
            return tensor
        tensor.join = functools.partial(join_at, backend, home or backend.place_of(tensor))
        return tensor if tensor.used and not is_joined(tensor) else whole_of(tensor, tensor.join)

    return map_tensors(settle, values)


def join_at(backend: AbstractBackend, place: str, parts: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    """Join parts on a device, outside a step.

    Args:
        backend: the devices.
        place: the device.
        parts: alike but for their sizes along the axis.
        axis: the axis.
    """
    here = [part if backend.place_of(part) == place else transfer(part, backend, place) for part in parts]
    with backend.at(place):
        return torch.cat(here, axis)


def _lost(grad: torch.Tensor) -> torch.Tensor:
    raise BaechiError(
        "a gradient reached the output of a split layer by a way that torch functions do not see, and would "
        "be lost. Name base_device in the layer's BatchSpec: then its output is joined there"
    )
