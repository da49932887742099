"""Views of a sharded output: of which shards each consists, and where the axis along which they lie is then.

view, flatten, transpose, expand, ...    of each shard, if the axis stays what it is
[:, :-1], split, chunk                   of each shard; along the axis itself some of the shards, between
                                         whose bounds it cuts (queries, keys and values of one product)
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from baechi.run.sharded.output import ShardedOutput
from baechi.torchlib.shards.table import kind_of


class View(NamedTuple):
    """A sharded view.

    Args:
        axis: along which the shards lie.
        arguments: from the size of a shard to what the function is given after it; None: it is as it is.
        shards: which ones it consists of.
    """

    axis: int
    arguments: Callable[[int], Sequence[Any]] | None
    shards: slice = slice(None)


Views = View | list[View] | None
"""One, or several that the function returns together; None where the value has to be joined."""


def views_of(name: str, value: ShardedOutput, rest: Sequence[Any], named: dict[str, Any]) -> Views:
    """How a view goes by shards."""
    if name in ("split", "chunk"):
        return _divided(name, value, rest, named)
    return None if named else _VIEWED[name](value, rest)


def _reshaped(value: ShardedOutput, rest: Sequence[Any]) -> View | None:
    """As many leading elements as before the axis; a shard is as much of the new axis as of the old one."""
    shape = _numbers(rest)
    if shape is None or not value.numel():
        return None
    if shape.count(-1) == 1:
        shape[shape.index(-1)] = value.numel() // -math.prod(shape)
    before, whole = math.prod(value.shape[: value.axis]), value.shape[value.axis]
    fitting = [axis for axis, size in enumerate(shape) if math.prod(shape[:axis]) == before and size != 1]
    if not fitting or any(own * shape[fitting[0]] % whole for own in value.sizes):
        return None
    axis = fitting[0]
    return View(axis, lambda own: (*shape[:axis], own * shape[axis] // whole, *shape[axis + 1 :]))


def _numbers(rest: Sequence[Any]) -> list[int] | None:
    given = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else list(rest)
    return given if all(isinstance(one, int) for one in given) else None


def _flattened(value: ShardedOutput, rest: Sequence[Any]) -> View | None:
    start, end = [axis % value.dim() for axis in (*rest, *(0, -1)[len(rest) :])]
    if start <= value.axis <= end:
        return None
    gone = end - start if end < value.axis else 0
    return View(value.axis - gone, lambda own: (start, end))


def _transposed(value: ShardedOutput, rest: Sequence[Any]) -> View | None:
    if len(rest) != 2:
        return None
    one, other = [axis % value.dim() for axis in rest]
    return View({one: other, other: one}.get(value.axis, value.axis), lambda own: rest)


def _permuted(value: ShardedOutput, rest: Sequence[Any]) -> View | None:
    order = _numbers(rest)
    if order is None:
        return None
    return View([axis % value.dim() for axis in order].index(value.axis), lambda own: rest)


def _expanded(value: ShardedOutput, rest: Sequence[Any]) -> View | None:
    shape = _numbers(rest)
    axis = value.axis + len(shape or ()) - value.dim()
    if shape is None or shape[axis] not in (-1, value.shape[value.axis]):
        return None
    return View(axis, lambda own: (*shape[:axis], own, *shape[axis + 1 :]))


def _with_an_axis(value: ShardedOutput, rest: Sequence[Any]) -> View | None:
    if len(rest) != 1:
        return None
    return View(value.axis + (rest[0] % (value.dim() + 1) <= value.axis), lambda own: rest)


def _indexed(value: ShardedOutput, rest: Sequence[Any]) -> View | None:
    index = list(rest[0]) if isinstance(rest[0], tuple) else [rest[0]]
    if not all(one is None or one is ... or _is_place(one) for one in index):
        return None
    where = index.index(...) if ... in index else len(index)
    taken = sum([one is not None and one is not ... for one in index])
    index[where : where + 1] = [slice(None)] * (value.dim() - taken)
    places = [place for place, one in enumerate(index) if one is not None]
    at = places[value.axis]
    shards = _between(value, index[at])
    if shards is None:
        return None
    axis = len([one for one in index[:at] if not isinstance(one, int)])
    own_index = (*index[:at], slice(None), *index[at + 1 :])
    return View(axis, lambda own: (own_index,), shards)


def _is_place(one: Any) -> bool:
    return isinstance(one, slice) or (isinstance(one, int) and not isinstance(one, bool))


def _between(value: ShardedOutput, taken: Any) -> slice | None:
    """Which shards a slice along the axis takes; None if it cuts through one."""
    if not isinstance(taken, slice):
        return None
    bounds = [0, *accumulate(value.sizes)]
    start, stop, step = taken.indices(bounds[-1])
    if step != 1 or start >= stop or start not in bounds or stop not in bounds:
        return None
    return slice(bounds.index(start), bounds.index(stop))


def _divided(name: str, value: ShardedOutput, rest: Sequence[Any], named: dict[str, Any]) -> Views:
    given = dict(zip(("size", "dim"), rest, strict=False)) | {
        "dim" if key == "dim" else "size": one for key, one in named.items()
    }
    size, axis = given.get("size"), given.get("dim", 0) % value.dim()
    whole = value.shape[axis]
    if isinstance(size, int) and not isinstance(size, bool):
        step = size if name == "split" else -(-whole // size)
        sizes = [min(step, whole - start) for start in range(0, whole, max(1, step))]
    elif isinstance(size, (list, tuple)) and all(isinstance(one, int) for one in size):
        sizes = list(size)
    else:
        return None
    bounds = [0, *accumulate(sizes)]
    if axis != value.axis:
        return [_slice_of(value, axis, start, stop) for start, stop in pairwise(bounds)]
    found = [_between(value, slice(start, stop)) for start, stop in pairwise(bounds)]
    return None if None in found else [View(axis, None, shards) for shards in found if shards is not None]


def _slice_of(value: ShardedOutput, axis: int, start: int, stop: int) -> View:
    index = (*[slice(None)] * axis, slice(start, stop))
    return View(value.axis, lambda own: (index,))


_VIEWED: dict[str, Callable[[ShardedOutput, Sequence[Any]], View | None]] = {
    "view": _reshaped,
    "reshape": _reshaped,
    "flatten": _flattened,
    "transpose": _transposed,
    "swapaxes": _transposed,
    "permute": _permuted,
    "expand": _expanded,
    "unsqueeze": _with_an_axis,
    "__getitem__": _indexed,
}
assert {kind_of(name) for name in [*_VIEWED, "split", "chunk"]} == {"view"}
