"""Functional ops of a step that were given a sharded output: shard by shard, or joined first.

`torchlib.shards.table` says what each op does to shards. What is not there, or does not fit the shards at
hand, runs on the whole, which is joined where the largest shard lies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from baechi.run.sharded.loss import cross_entropy
from baechi.run.sharded.output import ShardedOutput, is_joined, sharded_output, whole_of
from baechi.run.sharded.views import View, views_of
from baechi.torchlib.operators.functions import function_name, is_question
from baechi.torchlib.operators.table import rule_of
from baechi.torchlib.private.modes import without_subclass_function
from baechi.torchlib.shards.table import Kind, kind_of
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

Run = Callable[..., Any]
"""`run(function, *arguments)`: runs a functional op in the open step."""

_CASTS = ("float", "double", "half", "bfloat16", "to", "contiguous")
"""These return the tensor itself where there is nothing to do."""


@dataclass(frozen=True)
class _Op:
    """A functional op that was given sharded outputs.

    Args:
        run: runs a functional op in the open step.
        place: the device of a tensor.
        func: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        given: the sharded outputs among these.
    """

    run: Run
    place: Callable[[Any], str | None]
    func: Any
    args: Any
    kwargs: dict[str, Any]
    given: Sequence[ShardedOutput]

    @property
    def name(self) -> str:
        """The name of the function."""
        return function_name(self.func)

    def made(
        self,
        shards: list[torch.Tensor],
        axis: int,
        view: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> ShardedOutput:
        """What it has made, sharded; `view` makes it of the whole, if it is a view of that."""
        first = self.given[0]
        return sharded_output(shards, axis, first.join, self.place(shards[0]), 0, (first, view))


def run_on_shards(
    run: Run, func: Any, args: Any, kwargs: dict[str, Any], place: Callable[[Any], str | None]
) -> Any:
    """Run a function that was given a sharded output."""
    name = function_name(func)
    if is_question(func) or rule_of(name).answers:
        with without_subclass_function():
            return func(*args, **kwargs)
    given = [tensor for tensor in tensors_in(args, kwargs) if isinstance(tensor, ShardedOutput)]
    runner = _RUNNERS.get(kind_of(name))
    if runner is not None and not any(map(is_joined, given)):
        made = runner(_Op(run, place, func, args, kwargs, given))
        if made is not NotImplemented:
            return made
    args, kwargs = joined_in_step(run, (args, kwargs))
    return run(func, *args, **kwargs)


def joined_in_step(run: Run, values: Any) -> Any:
    """Put wholes in the place of sharded outputs."""

    def join(shards: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
        made: torch.Tensor = run(torch.cat, list(shards), axis)
        return made

    return map_tensors(
        lambda tensor: whole_of(tensor, join) if isinstance(tensor, ShardedOutput) else tensor, values
    )


def _each(op: _Op) -> Any:
    value, args, kwargs = op.given[0], op.args, op.kwargs
    grouped = bool(kwargs.get("enable_gqa"))
    fits = all(_goes_with(value, one, grouped=grouped) for one in (*args, *kwargs.values()))
    if kwargs.get("inplace") or not fits:
        return NotImplemented

    def beside(other: torch.Tensor) -> Sequence[Any]:
        axis = value.axis_in(other)
        if axis is None:
            return [other] * len(value.shards)
        starts = accumulate(value.sizes, initial=0)
        pairs = zip(starts, value.sizes, strict=False)
        return [op.run(torch.narrow, other, axis, start, size) for start, size in pairs]

    made = value.each(lambda *one, **named: op.run(op.func, *one, **named), args, kwargs, beside)
    alone = op.name in _CASTS and _is_same(made[0], value.shards[0])
    return op.made(made, value.axis, (lambda whole: op.func(whole, *args[1:])) if alone else None)


def _is_same(made: torch.Tensor, shard: torch.Tensor) -> bool:
    with without_subclass_function():
        return made is shard or (made.dtype == shard.dtype and shard.is_contiguous())


def _goes_with(value: ShardedOutput, other: Any, *, grouped: bool = False) -> bool:
    """Whether each shard has its share of another argument; of `grouped` heads, another number of them."""
    if isinstance(other, ShardedOutput):
        even = len(value.sizes) == len(other.sizes) and sum(value.sizes) % sum(other.sizes) == 0
        times = sum(value.sizes) // sum(other.sizes) if grouped and even else 1
        alike = [one * times for one in other.sizes] == list(value.sizes)
        return alike and other.axis == value.axis and other.dim() == value.dim()
    if isinstance(other, torch.Tensor):
        with without_subclass_function():
            axis = value.axis_in(other)
            return other.dim() <= value.dim() and (axis is None or other.shape[axis] == sum(value.sizes))
    plain = other is None or isinstance(other, (bool, int, float, str, torch.dtype))
    return plain and not _names_device(other)


def _names_device(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return value not in ("none", "tanh")  # what `gelu` may be told


def _along_other_axes(op: _Op) -> Any:
    return _each(op) if all(_leaves_alone(op, value) for value in op.given) else NotImplemented


def _leaves_alone(op: _Op, value: ShardedOutput) -> bool:
    """Whether an op goes along other axes than that of the shards, and draws no numbers."""
    args, kwargs = op.args, op.kwargs
    if op.name == "softmax":
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return isinstance(axis, int) and axis % value.dim() != value.axis
    if op.name == "dropout":
        chance = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        return not chance or not kwargs.get("training", args[2] if len(args) > 2 else True)
    drops = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0)
    both = len(args) > 1 and isinstance(args[0], ShardedOutput) and isinstance(args[1], ShardedOutput)
    return both and value.axis < value.dim() - 2 and not drops


def _stacked(op: _Op) -> Any:
    """Values cut alike, together along another axis; an empty tensor, as of a new cache, adds nothing."""
    given = dict(zip(("tensors", "dim"), op.args, strict=False)) | op.kwargs
    values = given.pop("tensors", None)
    axis = given.pop("dim", 0)
    if given or not isinstance(values, (list, tuple)) or not isinstance(axis, int):
        return NotImplemented
    stacks = op.name == "stack"
    with without_subclass_function():
        values = [one for one in values if stacks or isinstance(one, ShardedOutput) or list(one.shape) != [0]]
    value = values[0]
    if not all(isinstance(one, ShardedOutput) and _goes_with(value, one) for one in values):
        return NotImplemented
    axis %= value.dim() + stacks
    if axis == value.axis and not stacks:
        return NotImplemented
    made = [op.run(op.func, [one.shards[k] for one in values], axis) for k in range(len(value.shards))]
    return op.made(made, value.axis + (stacks and axis <= value.axis))


def _viewed(op: _Op) -> Any:
    value, *rest = op.args or (None,)
    if len(op.given) > 1 or value is not op.given[0]:
        return NotImplemented
    found = views_of(op.name, value, rest, op.kwargs)
    if found is None:
        return NotImplemented
    if isinstance(found, View):
        return _of_shards(op, op.func, found, lambda whole: op.func(whole, *rest))

    def one_of(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda whole: op.func(whole, *rest, **op.kwargs)[number]

    take = torch.Tensor.__getitem__
    return tuple([_of_shards(op, take, view, one_of(number)) for number, view in enumerate(found)])


def _of_shards(
    op: _Op, func: Any, view: View, of_whole: Callable[[torch.Tensor], torch.Tensor]
) -> ShardedOutput:
    value = op.given[0]
    pairs = list(zip(value.shards, value.sizes, strict=True))[view.shards]
    made = [
        one if view.arguments is None else op.run(func, one, *view.arguments(size)) for one, size in pairs
    ]
    return op.made(made, view.axis, of_whole)


_RUNNERS: dict[Kind | None, Callable[[_Op], Any]] = {
    "each": _each,
    "view": _viewed,
    "stack": _stacked,
    "other axes": _along_other_axes,
    "loss": lambda op: cross_entropy(op.run, op.args, op.kwargs),
}
"""By what an op does to shards, what runs it on an output; NotImplemented where the whole is joined."""
