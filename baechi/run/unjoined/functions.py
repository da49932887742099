"""Functional ops of a step that were given a value in parts: part by part, or joined first.

float, mul by a number, tanh, ...    each part, on its device
view, [:, :-1], transpose, ...       each part, if its axis stays what it is
cross_entropy                        `loss`
all else                             on the whole, which is joined where the largest part lies
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.run.unjoined.loss import cross_entropy
from baechi.run.unjoined.value import Unjoined, is_joined, sizes_of, unjoined, whole_of
from baechi.split.piecewise import ELEMENTWISE, HEADS, VIEWS
from baechi.torchlib.operators.functions import QUESTIONS, function_name
from baechi.torchlib.operators.table import rule_of
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

Run = Callable[..., Any]
"""`run(function, *arguments)`: runs a functional op in the open step."""

_CASTS = ("float", "double", "half", "bfloat16", "to", "contiguous")
"""These return the tensor itself where there is nothing to do."""


def run_unjoined(
    run: Run, func: Any, args: Any, kwargs: dict[str, Any], place: Callable[[Any], str | None]
) -> Any:
    """Run a function that was given a value in parts.

    Args:
        run: runs a functional op in the open step.
        func: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        place: the device of a tensor.
    """
    given = [tensor for tensor in tensors_in(args, kwargs) if isinstance(tensor, Unjoined)]
    name = function_name(func)
    if func in QUESTIONS or rule_of(name).answers or isinstance(getattr(func, "__self__", None), property):
        with without_subclass_function():
            return func(*args, **kwargs)
    if not any(map(is_joined, given)):
        value = given[0]
        made: Any = NotImplemented
        if name == "cross_entropy":
            made = cross_entropy(run, args, kwargs)
        elif name in HEADS and all(_leaves_alone(name, one, args, kwargs) for one in given):
            made = _element_by_element(run, func, name, args, kwargs, place)
        elif name in ELEMENTWISE and not kwargs.get("inplace"):
            made = _element_by_element(run, func, name, args, kwargs, place)
        elif name in VIEWS and args and args[0] is value and not kwargs and len(given) == 1:
            made = _viewed(run, func, name, value, args[1:], place)
        if made is not NotImplemented:
            return made
    args, kwargs = joined_in_step(run, (args, kwargs))
    return run(func, *args, **kwargs)


def joined_in_step(run: Run, values: Any) -> Any:
    """Put wholes in the place of values in parts.

    Args:
        run: runs a functional op in the open step.
        values: anything; values in parts are found in lists, tuples and dicts.
    """

    def join(parts: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
        made: torch.Tensor = run(torch.cat, list(parts), axis)
        return made

    return map_tensors(
        lambda tensor: whole_of(tensor, join) if isinstance(tensor, Unjoined) else tensor, values
    )


def _like(
    value: Unjoined,
    parts: list[torch.Tensor],
    axis: int,
    place: Callable[[Any], str | None],
    view: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Unjoined:
    return unjoined(parts, axis, value.join, place(parts[0]), 0, (value, view))


def _element_by_element(
    run: Run, func: Any, name: str, args: Any, kwargs: dict[str, Any], place: Callable[[Any], str | None]
) -> Any:
    value = next(tensor for tensor in tensors_in(args, kwargs) if isinstance(tensor, Unjoined))
    if not all(_goes_with(value, one) for one in (*args, *kwargs.values())):
        return NotImplemented
    made = [
        run(func, *[_part(one, k) for one in args], **{key: _part(one, k) for key, one in kwargs.items()})
        for k in range(len(value.parts))
    ]
    alone = name in _CASTS and _is_same(made[0], value.parts[0])
    return _like(value, made, value.axis, place, (lambda whole: func(whole, *args[1:])) if alone else None)


def _is_same(made: torch.Tensor, part: torch.Tensor) -> bool:
    with without_subclass_function():
        return made is part or (made.dtype == part.dtype and part.is_contiguous())


def _part(value: Any, number: int) -> Any:
    return value.parts[number] if isinstance(value, Unjoined) else value


def _goes_with(value: Unjoined, other: Any) -> bool:
    """Whether another argument says the same of each part."""
    if isinstance(other, Unjoined):
        return other.axis == value.axis and sizes_of(other) == sizes_of(value) and other.dim() == value.dim()
    if isinstance(other, torch.Tensor):
        with without_subclass_function():
            axis = value.axis - value.dim() + other.dim()
            return other.dim() <= value.dim() and (axis < 0 or other.shape[axis] == 1)
    plain = other is None or isinstance(other, (bool, int, float, str, torch.dtype))
    return plain and not _names_device(other)


def _leaves_alone(name: str, value: Unjoined, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an op of `HEADS` goes along other axes, and draws no numbers."""
    if name == "softmax":
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return isinstance(axis, int) and axis % value.dim() != value.axis
    drops = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0)
    both = len(args) > 1 and isinstance(args[0], Unjoined) and isinstance(args[1], Unjoined)
    return both and value.axis < value.dim() - 2 and not drops and not kwargs.get("enable_gqa")


def _names_device(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return value not in ("none", "tanh")  # what `gelu` may be told


def _viewed(
    run: Run, func: Any, name: str, value: Unjoined, rest: Any, place: Callable[[Any], str | None]
) -> Any:
    found = _VIEWED[name](value, rest)
    if found is None:
        return NotImplemented
    axis, arguments = found
    made = [
        run(func, part, *arguments(size)) for part, size in zip(value.parts, sizes_of(value), strict=True)
    ]
    return _like(value, made, axis, place, lambda whole: func(whole, *rest))


Viewed = tuple[int, Callable[[int], Any]] | None
"""Where the axis is afterwards, and from the size of a part to the function's arguments; None: join."""


def _reshaped(value: Unjoined, rest: Any) -> Viewed:
    """As many leading elements as before the axis; a part is as much of the new axis as of the old one."""
    shape = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else list(rest)
    if not all(isinstance(one, int) for one in shape) or not value.numel():
        return None
    if shape.count(-1) == 1:
        shape[shape.index(-1)] = value.numel() // -math.prod(shape)
    before, whole = math.prod(value.shape[: value.axis]), value.shape[value.axis]
    fitting = [axis for axis, size in enumerate(shape) if math.prod(shape[:axis]) == before and size != 1]
    if not fitting or any(own * shape[fitting[0]] % whole for own in sizes_of(value)):
        return None
    axis = fitting[0]
    return axis, lambda own: (*shape[:axis], own * shape[axis] // whole, *shape[axis + 1 :])


def _flattened(value: Unjoined, rest: Any) -> Viewed:
    start, end = [axis % value.dim() for axis in (*rest, *(0, -1)[len(rest) :])]
    if start <= value.axis <= end:
        return None
    gone = end - start if end < value.axis else 0
    return value.axis - gone, lambda own: (start, end)


def _transposed(value: Unjoined, rest: Any) -> Viewed:
    if len(rest) != 2:
        return None
    one, other = [axis % value.dim() for axis in rest]
    return {one: other, other: one}.get(value.axis, value.axis), lambda own: rest


def _indexed(value: Unjoined, rest: Any) -> Viewed:
    index = list(rest[0]) if isinstance(rest[0], tuple) else [rest[0]]
    plain = all(
        one is None
        or one is ...
        or isinstance(one, slice)
        or (isinstance(one, int) and not isinstance(one, bool))
        for one in index
    )
    if not plain or value.axis != value.dim() - 1:
        return None
    taken = len([one for one in index if one is not None and one is not ...])
    reaches_last = taken == value.dim() or (... in index and index[-1] is not ...)
    if reaches_last and (index[-1] is None or index[-1] != slice(None)):
        return None
    axis = value.dim() - 1 - sum(isinstance(one, int) for one in index) + index.count(None)
    return axis, lambda own: rest


_VIEWED: dict[str, Callable[[Unjoined, Any], Viewed]] = {
    "view": _reshaped,
    "reshape": _reshaped,
    "flatten": _flattened,
    "transpose": _transposed,
    "__getitem__": _indexed,
}
assert frozenset(_VIEWED) == VIEWS
