"""A batch in parts, one for each microbatch: tensors along the batch's dimension, everything else whole."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from baechi.backend import AbstractBackend
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.handed import objects_in, own_of, tensors_behind
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

Split = Mapping[str, int | None]
"""By input's name, the dimension that is split, or None for an input that goes whole."""


@dataclass(frozen=True)
class Parted:
    """A batch in parts.

    Args:
        parts: the inputs of each microbatch.
        rows: how many rows each has.
        leaves: by input that requires a gradient: the input, its dimension (None if it went whole), and what
            stands for it in each microbatch.
        divided: the inputs of which each microbatch has its own rows.
        whole: the inputs with tensors that go whole to each microbatch.
    """

    parts: tuple[Inputs, ...]
    rows: tuple[int, ...]
    leaves: tuple[tuple[torch.Tensor, int | None, tuple[torch.Tensor, ...]], ...]
    divided: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


def parted(model: nn.Module, inputs: Inputs, microbatches: int, split: Split) -> Parted:
    """Split a batch.

    Args:
        model: the model, whose signature names positional arguments.
        inputs: what it is called with.
        microbatches: into how many parts. Their rows differ by one at most; none is dropped.
        split: exceptions from the rule that tensors are split which share the batch's leading size.

    Raises:
        ValueError: there are fewer rows than microbatches, or an input cannot be split as it is said.
    """
    named = list(_named(model, inputs))
    _check(named, split)
    rows = _rows(named, split)
    if rows is None or rows < microbatches:
        found = "no tensor with rows" if rows is None else f"{rows} rows"
        raise ValueError(
            f"the batch has {found}, and is split into {microbatches} microbatches: each needs a row at "
            "least. Use a larger batch, drop_last=True in the DataLoader, or fewer microbatches"
        )
    few, more = divmod(rows, microbatches)
    return divided(model, inputs, [few + (number < more) for number in range(microbatches)], split)


def divided(model: nn.Module, inputs: Inputs, sizes: Sequence[int], split: Split) -> Parted:
    """Split a batch into parts of given sizes.

    Args:
        model, inputs, split: see `parted`.
        sizes: how many rows each part has.

    Raises:
        ValueError: an input cannot be split as it is said, or at all.
    """
    named, rows = list(_named(model, inputs)), sum(sizes)
    grad = torch.is_grad_enabled()
    chunks: dict[int, tuple[torch.Tensor, int | None, tuple[torch.Tensor, ...]]] = {}
    names: dict[int | None, dict[str, None]] = {None: {}, 0: {}}
    for name, value in named:
        if name not in split:
            _refuse_objects(name, value, rows)
        for tensor in tensors_in(value):
            dim = _dimension(name, tensor, rows, split)
            names[None if dim is None else 0][name] = None
            if id(tensor) not in chunks:
                chunks[id(tensor)] = (tensor, dim, _chunks(tensor, dim, sizes, grad=grad))
    parts = tuple(
        own_of(inputs, lambda tensor, number=number: chunks[id(tensor)][2][number])  # type: ignore[misc]
        for number in range(len(sizes))
    )
    leaves = tuple(found for found in chunks.values() if grad and found[0].requires_grad)
    return Parted(parts, tuple(sizes), leaves, tuple(names[0]), tuple(names[None]))


def _refuse_objects(name: str, value: Any, rows: int) -> None:
    """An object may have rows of the batch, which cannot be divided."""
    for item in objects_in(value):
        for tensor in tensors_behind(item):
            if tensor.dim() > 1 and tensor.shape[0] == rows:
                raise ValueError(
                    f"{name} is a {type(item).__name__} that holds a tensor of shape {tuple(tensor.shape)}, "
                    f"with as many rows as the batch ({rows}), and cannot be divided: give its tensors, use "
                    f"microbatches=1, or say split={{{name!r}: None}} if each microbatch is to have all of it"
                )


def named_inputs(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """What a call is handed, by the names of the model's signature.

    Args:
        model: the model.
        inputs: what it is called with.
    """
    return dict(_named(model, inputs))


def _named(model: nn.Module, inputs: Inputs) -> Iterator[tuple[str, Any]]:
    parameters = inspect.signature(model.forward).parameters.values()
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [one.name for one in parameters if one.kind in by_place]
    for index, value in enumerate(inputs.args):
        yield (positional[index] if index < len(positional) else str(index)), value
    yield from inputs.kwargs.items()


def _check(named: list[tuple[str, Any]], split: Split) -> None:
    names = [name for name, _ in named]
    for name, dim in split.items():
        if name in names:
            for tensor in tensors_in(named[names.index(name)][1]):
                if dim is not None and not -tensor.dim() <= dim < tensor.dim():
                    raise ValueError(
                        f"split says dimension {dim} of {name}, which has {tensor.dim()}: name that of the "
                        "rows, or None for what every microbatch is given whole"
                    )
    for name, value in named:
        if isinstance(value, PackedSequence):
            raise ValueError(
                f"{name} is a PackedSequence, whose rows do not lie together: give the model padded tensors "
                "and pack inside of it, or use microbatches=1"
            )


def _rows(named: list[tuple[str, Any]], split: Split) -> int | None:
    """The size of the batch: that of a dimension that was named, else the leading one of the first tensor."""
    said = [(value, split[name]) for name, value in named if split.get(name) is not None]
    for value, dim in said:
        for tensor in tensors_in(value):
            return tensor.shape[dim or 0]
    for name, value in named:
        for tensor in tensors_in(value) if name not in split else ():
            if tensor.dim():
                return tensor.shape[0]
    return None


def _dimension(name: str, tensor: torch.Tensor, rows: int, split: Split) -> int | None:
    if name in split:
        dim = split[name]
        if dim is not None and tensor.shape[dim] != rows:
            raise ValueError(
                f"split says dimension {dim} of {name}, which has {tensor.shape[dim]} entries; the batch has "
                f"{rows} rows: name that of the rows, or None for what every microbatch is given whole"
            )
        return dim
    return 0 if tensor.dim() and tensor.shape[0] == rows else None


def _chunks(
    tensor: torch.Tensor, dim: int | None, sizes: Sequence[int], *, grad: bool
) -> tuple[torch.Tensor, ...]:
    plain = tensor.detach() if grad and tensor.requires_grad else tensor
    parts = (plain,) * len(sizes) if dim is None else plain.split(list(sizes), dim)
    if plain is tensor:
        return parts
    return tuple(part.detach().requires_grad_() for part in parts)


def joined_gradient(
    backend: AbstractBackend, whole: torch.Tensor, dim: int | None, parts: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """The gradient of an input, from those of its parts, which are taken.

    Args:
        backend: the devices.
        whole: the input.
        dim: along which it was split; None if it went whole, so that its gradient is a sum.
        parts: what stood for it in each microbatch.

    Returns:
        The gradient; None if no part has one.
    """
    if all(part.grad is None for part in parts):
        return None
    with torch.no_grad(), backend.at(backend.place_of(whole), ""):
        grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in parts]
        for part in parts:
            part.grad = None
        return torch.stack(grads).sum(0) if dim is None else torch.cat(grads, dim)


def rows_of(model: nn.Module, inputs: Inputs, split: Split) -> int | None:
    """How many rows a batch has; None if no tensor has any.

    Args:
        model: the model.
        inputs: the batch.
        split: see `parted`.
    """
    return _rows(list(_named(model, inputs)), split)


def some_rows(model: nn.Module, inputs: Inputs, rows: Sequence[int], split: Split) -> Inputs:
    """Some rows of a batch, copied.

    Args:
        model: the model.
        inputs: the batch, which has these rows.
        rows: their numbers.
        split: see `parted`.
    """
    named = list(_named(model, inputs))
    there = _rows(named, split)
    assert there is not None
    dims = {id(t): _dimension(name, t, there, split) for name, value in named for t in tensors_in(value)}

    def taken(tensor: torch.Tensor) -> torch.Tensor:
        dim = dims[id(tensor)]
        return tensor if dim is None else tensor.index_select(dim, torch.tensor(rows, device=tensor.device))

    args, kwargs = map_tensors(taken, (inputs.args, inputs.kwargs))
    return Inputs(*args, **kwargs)
