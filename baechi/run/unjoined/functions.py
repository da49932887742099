"""Functional ops of a step that were given a value in parts: part by part, or joined first.

float, mul by a number, tanh, ...    each part, on its device
matmul, softmax, cat, ...            each part, along other axes than that of the parts
view, [:, :-1], split, ...           `views`
cross_entropy                        `loss`
all else                             on the whole, which is joined where the largest part lies
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from baechi.run.unjoined.loss import cross_entropy
from baechi.run.unjoined.value import Unjoined, is_joined, sizes_of, unjoined, whole_of
from baechi.run.unjoined.views import View, views_of
from baechi.split.piecewise import ELEMENTWISE, GATHERED, HEADS, VIEWS
from baechi.torchlib.operators.functions import function_name, is_question
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
    if is_question(func) or rule_of(name).answers:
        with without_subclass_function():
            return func(*args, **kwargs)
    if not any(map(is_joined, given)):
        value = given[0]
        made: Any = NotImplemented
        if name == "cross_entropy":
            made = cross_entropy(run, args, kwargs)
        elif name in GATHERED:
            made = _gathered(run, func, name, args, kwargs, place)
        elif name in HEADS and all(_leaves_alone(name, one, args, kwargs) for one in given):
            made = _element_by_element(run, func, name, args, kwargs, place)
        elif name in ELEMENTWISE and not kwargs.get("inplace"):
            made = _element_by_element(run, func, name, args, kwargs, place)
        elif name in VIEWS and args and args[0] is value and len(given) == 1:
            made = _viewed(run, func, name, args, kwargs, place)
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
    grouped = bool(kwargs.get("enable_gqa"))
    if not all(_goes_with(value, one, grouped=grouped) for one in (*args, *kwargs.values())):
        return NotImplemented
    columns = [_parts(run, value, one) for one in args]
    named = {key: _parts(run, value, one) for key, one in kwargs.items()}
    made = [
        run(func, *[column[k] for column in columns], **{key: column[k] for key, column in named.items()})
        for k in range(len(value.parts))
    ]
    alone = name in _CASTS and _is_same(made[0], value.parts[0])
    return _like(value, made, value.axis, place, (lambda whole: func(whole, *args[1:])) if alone else None)


def _is_same(made: torch.Tensor, part: torch.Tensor) -> bool:
    with without_subclass_function():
        return made is part or (made.dtype == part.dtype and part.is_contiguous())


def _parts(run: Run, value: Unjoined, other: Any) -> Sequence[Any]:
    """What of an argument goes with each part: of a tensor that is as long along the axis, its slice."""
    if isinstance(other, Unjoined):
        return other.parts
    if isinstance(other, torch.Tensor):
        axis = value.axis - value.dim() + other.dim()
        if axis >= 0 and other.shape[axis] != 1:
            starts = accumulate(sizes_of(value), initial=0)
            pairs = zip(starts, sizes_of(value), strict=False)
            return [run(torch.narrow, other, axis, start, size) for start, size in pairs]
    return [other] * len(value.parts)


def _goes_with(value: Unjoined, other: Any, *, grouped: bool = False) -> bool:
    """Whether each part has its share of another argument; of `grouped` heads, another number of them."""
    if isinstance(other, Unjoined):
        own, others = sizes_of(value), sizes_of(other)
        even = len(own) == len(others) and sum(own) % sum(others) == 0
        times = sum(own) // sum(others) if grouped and even else 1
        alike = [one * times for one in others] == own
        return alike and other.axis == value.axis and other.dim() == value.dim()
    if isinstance(other, torch.Tensor):
        with without_subclass_function():
            axis = value.axis - value.dim() + other.dim()
            return other.dim() <= value.dim() and (
                axis < 0 or other.shape[axis] in (1, value.shape[value.axis])
            )
    plain = other is None or isinstance(other, (bool, int, float, str, torch.dtype))
    return plain and not _names_device(other)


def _leaves_alone(name: str, value: Unjoined, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an op of `HEADS` goes along other axes, and draws no numbers."""
    if name == "softmax":
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return isinstance(axis, int) and axis % value.dim() != value.axis
    if name == "dropout":
        chance = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        return not chance or not kwargs.get("training", args[2] if len(args) > 2 else True)
    drops = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0)
    both = len(args) > 1 and isinstance(args[0], Unjoined) and isinstance(args[1], Unjoined)
    return both and value.axis < value.dim() - 2 and not drops


def _names_device(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return value not in ("none", "tanh")  # what `gelu` may be told


def _gathered(
    run: Run, func: Any, name: str, args: Any, kwargs: dict[str, Any], place: Callable[[Any], str | None]
) -> Any:
    """Values cut alike, together along another axis; an empty tensor, as of a new cache, adds nothing."""
    given = dict(zip(("tensors", "dim"), args, strict=False)) | kwargs
    values = given.pop("tensors", None)
    axis = given.pop("dim", 0)
    if given or not isinstance(values, (list, tuple)) or not isinstance(axis, int):
        return NotImplemented
    with without_subclass_function():
        values = [
            one for one in values if name == "stack" or isinstance(one, Unjoined) or list(one.shape) != [0]
        ]
    value = values[0]
    if not all(isinstance(one, Unjoined) and _goes_with(value, one) for one in values):
        return NotImplemented
    stacks = name == "stack"
    axis %= value.dim() + stacks
    if axis == value.axis and not stacks:
        return NotImplemented
    made = [run(func, [one.parts[k] for one in values], axis) for k in range(len(value.parts))]
    return _like(value, made, value.axis + (stacks and axis <= value.axis), place)


def _viewed(
    run: Run, func: Any, name: str, args: Any, kwargs: dict[str, Any], place: Callable[[Any], str | None]
) -> Any:
    value, rest = args[0], args[1:]
    found = views_of(name, value, rest, kwargs)
    if found is None:
        return NotImplemented
    if isinstance(found, View):
        return _of_parts(run, func, value, found, place, lambda whole: func(whole, *rest))

    def one_of(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda whole: func(whole, *rest, **kwargs)[number]

    take = torch.Tensor.__getitem__
    return tuple(
        [_of_parts(run, take, value, view, place, one_of(number)) for number, view in enumerate(found)]
    )


def _of_parts(
    run: Run,
    func: Any,
    value: Unjoined,
    view: View,
    place: Callable[[Any], str | None],
    of_whole: Callable[[torch.Tensor], torch.Tensor],
) -> Unjoined:
    pairs = list(zip(value.parts, sizes_of(value), strict=True))[view.parts]
    made = [
        part if view.arguments is None else run(func, part, *view.arguments(size)) for part, size in pairs
    ]
    return _like(value, made, view.axis, place, of_whole)
