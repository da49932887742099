"""A batch in parts, one for each microbatch: rows of tensors, items of lists, everything else whole.

x (8, 16)          along the dimension of its rows: the leading one, unless `split` says another
["a", "b", ...]    a list of 8, whose items have no rows of their own: by items
mask (16, 16)      whole
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from baechi.backend import AbstractBackend
from baechi.errors import UNSPLIT_CURE
from baechi.records.inputs import Inputs
from baechi.records.pipeline.pipeline import ITEMS
from baechi.run.pipeline.batch.caller_objects import objects_in, own_of, tensors_behind
from baechi.torchlib.tensors.pytree import tensors_in

Divide = Callable[[str, Any, int], Sequence[Any]]
"""From an input's name, what the call is handed, and the number of microbatches, what each of them gets."""

How = int | str | None | Divide | Sequence[Any]
"""A dimension; `"items"` of lists; None for whole; a function that divides; or what each microbatch gets."""

Split = Mapping[str, How]
"""By input's name, how it is divided."""

_AUTO = "auto"
"""An input of which nothing is said: by rows, where it has them."""

_CHANNELS = (1, 3, 4)


class Unsplittable(ValueError):
    """A batch has too few rows, or something that has rows and cannot be divided."""


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
        items: by `id`, tensors in lists that were divided by items.
        is_plain: whether it is known that the batch has tensors and plain values alone.
    """

    parts: tuple[Inputs, ...]
    rows: tuple[int, ...]
    leaves: tuple[tuple[torch.Tensor, int | None, tuple[torch.Tensor, ...]], ...]
    divided: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    items: frozenset[int] = frozenset()
    is_plain: bool = False


def parted(model: nn.Module, inputs: Inputs, microbatches: int, split: Split) -> Parted:
    """Split a batch."""
    named = list(_named(model, inputs))
    _check(named, split)
    own = _own(named, split)
    given = {name: _by_function(name, value, split[name], microbatches) for name, value in own}
    rows = _rows(named, split)
    for name, value in own:
        lengths = _lengths(given[name])
        if lengths is not None and sum(lengths) in (rows, *[size.rows for size in _sizes(value)]):
            return _divided(model, inputs, lengths, split, given)
    if own and rows is None:
        return _divided(model, inputs, _lengths(given[own[0][0]]) or [1] * microbatches, split, given)
    if rows is None or rows < microbatches:
        found = "no tensor with rows" if rows is None else "1 row" if rows == 1 else f"{rows} rows"
        raise Unsplittable(
            f"the batch has {found}, and is split into {microbatches} microbatches: each needs a row at "
            f"least. Use a larger batch, or fewer microbatches{_hint(named, split, rows, microbatches)}"
        )
    return _divided(model, inputs, sizes_of(rows, microbatches), split, given)


def sizes_of(rows: int, microbatches: int) -> tuple[int, ...]:
    """How many rows each microbatch has: they differ by one at most."""
    few, more = divmod(rows, microbatches)
    return (few + 1,) * more + (few,) * (microbatches - more)


def divided(model: nn.Module, inputs: Inputs, sizes: Sequence[int], split: Split) -> Parted:
    """Split a batch into parts of given sizes."""
    for name, _ in _own(list(_named(model, inputs)), split):
        raise Unsplittable(f"{name} is divided by a function, which is asked for all of the batch")
    return _divided(model, inputs, sizes, split, {})


def _divided(
    model: nn.Module,
    inputs: Inputs,
    sizes: Sequence[int],
    split: Split,
    given: Mapping[str, Sequence[Any]],
) -> Parted:
    found, grad = _found(model, inputs, sum(sizes), split), torch.is_grad_enabled()
    for name, item in found.objects:
        _refuse_rows_of(name, item, sum(sizes))
    cut_tensors = {
        key: (tensor, dim, chunks(tensor, dim, sizes, grad=grad)) for key, (tensor, dim) in found.dims.items()
    }
    begun = list(accumulate(sizes, initial=0))
    stand: list[dict[int, torch.Tensor]] = [{} for _ in sizes]
    items: dict[int, torch.Tensor] = {}
    for value, _ in found.lists.values():
        for number, first in enumerate(begun[:-1]):
            for tensor in tensors_in(value[first : begun[number + 1]]) if _is_sequence(value) else ():
                own = chunks(tensor, None, [1], grad=grad)[0]
                stand[number].setdefault(id(tensor), own)
                items[id(tensor)] = tensor

    def part(number: int) -> Inputs:
        here = {name: parts[number] for name, parts in given.items()}
        cut = {
            key: _rows_from(value, dim, range(begun[number], begun[number + 1]))
            for key, (value, dim) in found.lists.items()
        }

        def change(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in cut_tensors:
                return cut_tensors[id(tensor)][2][number]
            return stand[number].get(id(tensor), tensor)

        return own_of(_with(model, inputs, here), change, cut)

    parts = tuple(map(part, range(len(sizes))))
    leaves = [one for one in cut_tensors.values() if grad and one[0].requires_grad]
    leaves += [
        (tensor, None, tuple(each[key] for each in stand if key in each))
        for key, tensor in items.items()
        if grad and tensor.requires_grad and key not in cut_tensors
    ]
    owned = frozenset(id(one) for each in stand for one in each.values()) | items.keys()
    return Parted(parts, tuple(sizes), tuple(leaves), (*found.divided, *given), tuple(found.whole), owned)


# --- how inputs are divided


@dataclass
class _Found:
    """What inputs hold.

    Args:
        dims: by `id`, tensors and the dimension of their rows; None for what goes whole.
        lists: by `id`, lists that are divided by items, and arrays, with the dimension of their rows.
        objects: what is neither data nor a container, by the input's name; of inputs that nothing is said of.
        divided, whole: names of inputs with rows, and of those with tensors that go whole.
    """

    dims: dict[int, tuple[torch.Tensor, int | None]] = field(default_factory=dict)
    lists: dict[int, tuple[Any, int]] = field(default_factory=dict)
    objects: list[tuple[str, Any]] = field(default_factory=list)
    divided: dict[str, None] = field(default_factory=dict)
    whole: dict[str, None] = field(default_factory=dict)


def _found(model: nn.Module, inputs: Inputs, rows: int, split: Split) -> _Found:
    found = _Found()
    for name, value in _opened(_named(model, inputs)):
        if not is_own(_how(split, name)):
            _look_at(name, value, rows, _how(split, name), found)
    return found


def _look_at(name: str, value: Any, rows: int, how: Any, found: _Found) -> None:
    """Note what a value holds, and what of it is divided."""
    if isinstance(value, torch.Tensor):
        dim = _dimension(name, value, rows, how)
        found.dims.setdefault(id(value), (value, dim))
        (found.whole if dim is None else found.divided)[name] = None
    elif _is_sequence(value) and (how == ITEMS or (how == _AUTO and _has_an_item_for_each(value, rows))):
        _check_length(name, len(value), rows)
        found.lists[id(value)] = (value, 0)
        found.divided[name] = None
    elif isinstance(value, (list, tuple)) or _inside(value) is not None:
        inside = _inside(value)
        for item in value if inside is None else inside.values():
            _look_at(name, item, rows, how, found)
    elif _is_array(value):
        dim = 0 if how in (ITEMS, _AUTO) else how
        if dim is not None and value.ndim > dim and (value.shape[dim] == rows or how != _AUTO):
            _check_length(name, value.shape[dim], rows)
            found.lists[id(value)] = (value, dim)
            found.divided[name] = None
    else:
        for tensor in tensors_in(value):  # a container that torch's pytree knows
            _look_at(name, tensor, rows, how, found)
        if how == _AUTO:
            found.objects += [(name, item) for item in objects_in(value)]


def handed_objects(model: nn.Module, inputs: Inputs, rows: int, split: Split) -> list[tuple[str, Any]]:
    """What is neither data nor a container, of inputs that nothing is said of: by the input's name."""
    return _found(model, inputs, rows, split).objects


def _check_length(name: str, length: int, rows: int) -> None:
    if length != rows:
        raise ValueError(
            f"split says items of {name}, of which there are {length}; the batch has {rows} rows: name a "
            "dimension, or None for what every microbatch is given whole"
        )


def _is_sequence(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple)) and not hasattr(value, "_fields") and type(value) is not torch.Size
    )


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _has_an_item_for_each(value: Sequence[Any], rows: int) -> bool:
    """Whether a list has an item for each row, and is none of values that have rows themselves."""
    if len(value) != rows or (isinstance(value, tuple) and all(map(_is_number, value))):
        return False
    return not all(_has_rows(item, rows) for item in value)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float))


def _has_rows(item: Any, rows: int) -> bool:
    if isinstance(item, torch.Tensor):
        return item.dim() > 0 and item.shape[0] == rows and not _is_image(item)
    return len(item) == rows if _is_sequence(item) or (_is_array(item) and item.ndim) else False


def _is_image(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dim() == 3 and item.shape[0] in _CHANNELS


def _refuse_rows_of(name: str, item: Any, rows: int) -> None:
    """An object may have rows of the batch, which cannot be divided."""
    for tensor in tensors_behind(item):
        if tensor.dim() > 1 and tensor.shape[0] == rows:
            raise Unsplittable(
                f"{name} is a {type(item).__name__} that holds a tensor of shape {tuple(tensor.shape)}, "
                f"with as many rows as the batch ({rows}), and cannot be divided: give its tensors, say "
                f"split={{{name!r}: None}} if each microbatch is to have all of it, or a function that "
                "divides it, or leave microbatches out"
            )


# --- inputs that are divided by a function, or that the user has divided


def is_own(how: Any) -> bool:
    """Whether an input is divided by a function, or by the user, so that no file can say how."""
    return callable(how) or isinstance(how, (list, tuple))


def _own(named: Sequence[tuple[str, Any]], split: Split) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in named if is_own(split.get(name))]


def _by_function(name: str, value: Any, how: Any, microbatches: int) -> Sequence[Any]:
    """What each microbatch gets of an input."""
    parts = how(name, value, microbatches) if callable(how) else how
    if not isinstance(parts, (list, tuple)) or len(parts) != microbatches:
        found = f"{len(parts)} parts" if isinstance(parts, (list, tuple)) else f"a {type(parts).__name__}"
        who = f"the function that divides {name} returns" if callable(how) else f"split has for {name}"
        raise ValueError(
            f"{who} {found}, and there are {microbatches} microbatches: a list with what each of them gets "
            "is wanted (a batch with fewer rows than microbatches has one for each row)"
        )
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(*parts)):
        raise ValueError(
            f"{name} needs a gradient, and is divided by a function: its gradient would be lost. Say along "
            f"which dimension it is divided (split={{{name!r}: 0}}), or detach it"
        )
    return parts


def _lengths(parts: Sequence[Any]) -> list[int] | None:
    """How many rows each part has: the leading size of its first tensor, else its length."""
    found = []
    for part in parts:
        first = next((tensor for tensor in tensors_in(part) if tensor.dim()), None)
        if first is None and not (_is_sequence(part) or _is_array(part)):
            return None
        found.append(len(part) if first is None or _is_sequence(part) else first.shape[0])
    return found if all(found) else None


def _with(model: nn.Module, inputs: Inputs, here: Mapping[str, Any]) -> Inputs:
    """Inputs with others in place of some."""
    if not here:
        return inputs
    names = [name for name, _ in _named(model, inputs)][: len(inputs.args)]
    args = [here.get(name, value) for name, value in zip(names, inputs.args, strict=True)]
    return Inputs(*args, **{name: here.get(name, value) for name, value in inputs.kwargs.items()})


# --- names and rows


def named_inputs(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """What a call is handed, by the names of the model's signature."""
    return dict(_named(model, inputs))


def named_values(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The same, with what mappings and dataclasses hold by its own name: `batch.ids`."""
    return dict(_opened(_named(model, inputs)))


def _opened(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, value in named:
        inside = _inside(value)
        if inside is None:
            yield name, value
        else:
            yield from _opened((f"{name}.{key}", item) for key, item in inside.items())


def _how(split: Split, name: str) -> Any:
    """What is said of a value, or of what it is in."""
    while name not in split and "." in name:
        name = name.rpartition(".")[0]
    return split.get(name, _AUTO)


def _named(model: nn.Module, inputs: Inputs) -> Iterator[tuple[str, Any]]:
    parameters = inspect.signature(model.forward).parameters.values()
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [one.name for one in parameters if one.kind in by_place]
    for index, value in enumerate(inputs.args):
        yield (positional[index] if index < len(positional) else str(index)), value
    yield from inputs.kwargs.items()


def _check(named: list[tuple[str, Any]], split: Split) -> None:
    for name, value in _opened(named):
        dim = _how(split, name)
        if is_own(dim) and "." in name and not is_own(split.get(name.partition(".")[0])):
            raise ValueError(
                f"split divides a part of an input, {name}, by a function: divide all of the input"
            )
        for tensor in tensors_in(value) if isinstance(dim, int) else ():
            if not -tensor.dim() <= dim < tensor.dim():
                raise ValueError(
                    f"split says dimension {dim} of {name}, which has {tensor.dim()}: name that of the "
                    "rows, or None for what every microbatch is given whole"
                )
        if isinstance(value, PackedSequence) and not is_own(dim):
            raise Unsplittable(
                f"{name} is a PackedSequence, whose rows do not lie together: give the model padded tensors "
                "and pack inside of it, or leave microbatches out"
            )


def _rows(named: list[tuple[str, Any]], split: Split) -> int | None:
    """The size of the batch: of what was named, else of the first input that has one."""
    opened = [(value, _how(split, name)) for name, value in _opened(named)]
    for value, how in opened:
        if how == ITEMS and (lists := list(lists_in(value))):
            return len(lists[0])
        for tensor in tensors_in(value) if isinstance(how, int) else ():
            return int(tensor.shape[how]) if -tensor.dim() <= how < tensor.dim() else None
    sizes = [size for value, how in opened if how == _AUTO for size in _sizes(value)]
    sure = [size for size in sizes if size.is_sure] or sizes
    if not sure:
        return None
    first, counts = sure[0], [size.rows for size in sizes]
    # a list of tensors of one size may have an item a row: other inputs tell
    is_by_items = first.items is not None and counts.count(first.items) > counts.count(first.rows) - 1
    return first.items if is_by_items else first.rows


def _hint(named: list[tuple[str, Any]], split: Split, rows: int | None, microbatches: int) -> str:
    """What is taken for the rows of the batch, where others may be."""
    sizes = [
        (name, value, size.rows)
        for name, value in _opened(named)
        for size in _sizes(value)
        if _how(split, name) == _AUTO
    ]
    name, first = next(((name, value) for name, value, size in sizes if size == rows), ("", None))
    other = next((size for _, _, size in sizes if size >= microbatches), None)
    if not name or other is None:
        return ""
    shape = first.shape if isinstance(first, torch.Tensor) else ()
    dim = shape.index(other) if other in shape else None
    return f". These are the rows of {name}: if {other} are those of the batch, say split={{{name!r}: {dim}}}"


@dataclass(frozen=True)
class _Size:
    """How many rows a value seems to have.

    Args:
        rows: so many.
        items: so many it has if its items are rows, where that may be.
        is_sure: whether it counts before others.
    """

    rows: int
    items: int | None = None
    is_sure: bool = True


def _sizes(value: Any) -> Iterator[_Size]:
    if isinstance(value, torch.Tensor):
        yield from [_Size(value.shape[0])] if value.dim() else []
    elif _is_array(value):
        yield from [_Size(value.shape[0], is_sure=False)] if value.ndim else []
    elif _is_sequence(value):
        yield from _sizes_of_list(value)
    else:
        inside = _inside(value)
        for item in tensors_in(value) if inside is None else inside.values():
            yield from _sizes(item)


def _sizes_of_list(value: Sequence[Any]) -> Iterator[_Size]:
    """A list has as many rows as items; but if these are tensors of one size, or lists, as many as they."""
    tensors = [item for item in value if isinstance(item, torch.Tensor) and item.dim()]
    if tensors and len(tensors) == len(value):
        leading = {item.shape[0] for item in tensors}
        if len(leading) > 1 or all(map(_is_image, tensors)):
            yield _Size(len(value))
        else:
            yield _Size(leading.pop(), len(value))
    elif isinstance(value, tuple) and any(isinstance(item, (torch.Tensor, list, tuple)) for item in value):
        for item in value:
            yield from _sizes(item)
    elif not all(map(_is_number, value)):
        yield _Size(len(value), is_sure=False)


def _inside(value: Any) -> dict[Any, Any] | None:
    """What a mapping or a dataclass holds; None for anything else."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name, None) for one in fields(value)}
    return None


def lists_in(value: Any) -> Iterator[Any]:
    """The outermost lists of an input, and arrays."""
    if _is_sequence(value) or _is_array(value):
        yield value
    for item in (_inside(value) or {}).values():
        yield from lists_in(item)


def _dimension(name: str, tensor: torch.Tensor, rows: int, how: Any) -> int | None:
    if isinstance(how, int):
        if tensor.shape[how] != rows:
            raise ValueError(
                f"split says dimension {how} of {name}, which has {tensor.shape[how]} entries; the batch has "
                f"{rows} rows: name that of the rows, or None for what every microbatch is given whole"
            )
        return how
    return 0 if how is not None and tensor.dim() and tensor.shape[0] == rows else None


def dimensions(model: nn.Module, inputs: Inputs, rows: int, split: Split) -> Iterator[int | None]:
    """By value that a call is handed, along which dimension it is divided; None for what goes whole."""
    for name, value in _named(model, inputs):
        is_tensor = isinstance(value, torch.Tensor)
        yield _dimension(name, value, rows, _how(split, name)) if is_tensor else None


def chunks(
    tensor: torch.Tensor, dim: int | None, sizes: Sequence[int], *, grad: bool
) -> tuple[torch.Tensor, ...]:
    """What each microbatch gets of a tensor."""
    plain = tensor.detach() if grad and tensor.requires_grad else tensor
    if dim is not None and tensor.layout not in (torch.strided, torch.jagged):
        raise Unsplittable(
            f"an input of shape {tuple(tensor.shape)} is sparse, and is not divided: give it to every "
            f"microbatch whole, split={{name: None}}, or {UNSPLIT_CURE}"
        )
    parts = (plain,) * len(sizes) if dim is None else plain.split(list(sizes), dim)
    if plain is tensor:
        return parts
    return tuple(part.detach().requires_grad_() for part in parts)


def joined_gradient(
    backend: AbstractBackend, whole: torch.Tensor, dim: int | None, parts: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """The gradient of an input, from those of its parts, which are taken."""
    if all(part.grad is None for part in parts):
        return None
    with torch.no_grad(), backend.at(backend.place_of(whole), ""):
        grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in parts]
        for part in parts:
            part.grad = None
        return torch.stack(grads).sum(0) if dim is None else torch.cat(grads, dim)


def rows_of(model: nn.Module, inputs: Inputs, split: Split) -> int | None:
    """How many rows a batch has, or seems to have if functions divide it; None if nothing has any."""
    named = list(_named(model, inputs))
    return _rows(named, {name: how for name, how in split.items() if not is_own(how)})


def some_rows(model: nn.Module, inputs: Inputs, rows: Sequence[int], split: Split) -> Inputs:
    """Some rows of a batch, copied."""
    there = rows_of(model, inputs, split)
    if there is None or _own(list(_named(model, inputs)), split):
        raise Unsplittable("some rows of what a function divides are not known")
    found = _found(model, inputs, there, split)

    def taken(tensor: torch.Tensor) -> torch.Tensor:
        dim = found.dims[id(tensor)][1] if id(tensor) in found.dims else None
        return tensor if dim is None else tensor.index_select(dim, torch.tensor(rows, device=tensor.device))

    return own_of(
        inputs, taken, {key: _rows_from(value, dim, rows) for key, (value, dim) in found.lists.items()}
    )


def _rows_from(value: Any, dim: int, rows: Sequence[int]) -> Any:
    """Some items of a list, or rows of an array."""
    if _is_array(value):
        return value.take(list(rows), axis=dim)
    items = [value[row] for row in rows]
    return items if type(value) is list else type(value)(items)
