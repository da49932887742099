"""What an argument is, seen by rows: sliced, whole, or refused by its name.

rows 0 to 511 of     x (4608, 16)        a tensor with all rows: sliced
                     scale (), w (1, 16) one row, or none: whole to each chunk
                     names [4608 str]    as long as the rows: `split` has to say what it is
                     table (100, 16)     other rows: `split` has to say what it is
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from baechi.errors import FatalError
from baechi.torchlib.tensors.pytree import tensors_in

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


def has_dim(tensor: torch.Tensor, dim: int) -> bool:
    """Whether a tensor has a dimension."""
    return -tensor.dim() <= dim < tensor.dim()


def check_argument(name: str, value: Any, dim: int, rows: int, *, said: bool) -> None:
    """Refuse an argument of which it is not clear what a chunk gets."""
    for item in items_in(value):
        if isinstance(item, PackedSequence):
            raise FatalError(
                f"argument {name!r} is a PackedSequence, whose rows are interleaved: pass padded tensors, "
                "or keep the whole batch in one chunk"
            )
        if not said and is_list_of(item, rows):
            raise FatalError(
                f"argument {name!r} has a {type(item).__name__} of {len(item)}, as many as there are rows, "
                f"which holds no tensors: say whether it is sliced, Rows(split={{{name!r}: 0}}), or goes "
                f"whole, Rows(split={{{name!r}: None}})"
            )
    for tensor in tensors_in(value):
        _check_tensor(name, tensor, dim, rows)


def _check_tensor(name: str, tensor: torch.Tensor, dim: int, rows: int) -> None:
    extent = tensor.shape[dim] if not tensor.is_nested and has_dim(tensor, dim) else 1
    if tensor.is_nested or (extent == rows > 1 and tensor.layout != torch.strided):
        raise FatalError(
            f"argument {name!r} is a {'nested' if tensor.is_nested else tensor.layout} tensor, whose rows "
            "cannot be sliced: pass a dense one, or keep the whole batch in one chunk"
        )
    if extent not in (1, rows):
        raise FatalError(
            f"argument {name!r} has {extent} rows ({tuple(tensor.shape)}, dimension {dim}) and the "
            f"call has {rows}: say with Rows(split={{{name!r}: ...}}) along which dimension it "
            "is sliced, or None if it goes whole to each chunk"
        )


def is_list_of(value: Any, rows: int) -> bool:
    """Whether a value is a list (or an array that is no tensor) with something for each row."""
    if isinstance(value, list):
        return len(value) == rows > 1 and next(tensors_in(value), None) is None
    shape: tuple[int, ...] = getattr(value, "shape", ())
    is_array = hasattr(value, "__array__") and not isinstance(value, torch.Tensor)
    return is_array and bool(shape) and shape[0] == rows > 1


def items_in(value: Any) -> Iterator[Any]:
    """A value, and what is in it."""
    yield value
    if isinstance(value, PackedSequence):
        return
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    for one in inner:
        yield from items_in(one)


def sort_of(value: Any, rows: int) -> Iterator[Any]:
    """What is the same in calls that differ in their rows only."""
    for item in items_in(value):
        if isinstance(item, torch.Tensor):
            yield item.dtype, tuple([-1 if extent == rows else extent for extent in item.shape])
        else:
            yield item if isinstance(item, _PLAIN) else type(item)


def lists_cut(value: Any, rows: int, start: int, stop: int) -> Any:
    """The same with its lists of rows sliced."""
    if is_list_of(value, rows):
        return value[start:stop]
    if type(value) is dict:
        return {key: lists_cut(one, rows, start, stop) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([lists_cut(one, rows, start, stop) for one in value])
    return value
