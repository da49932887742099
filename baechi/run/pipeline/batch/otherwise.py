"""Other ways to divide inputs, where parts give something else than the whole batch, or fail."""

from collections.abc import Iterator, Mapping
from itertools import combinations, islice
from typing import Any

from baechi.records.pipeline.pipeline import ITEMS
from baechi.run.pipeline.batch.partition import How, Parted, Split, lists_in
from baechi.torchlib.tensors.pytree import tensors_in

_MOST = 32
"""So many ways are tried."""

_DIMS = 4


def otherwise(inputs: Mapping[str, Any], parts: Parted, split: Split) -> Iterator[Split]:
    """Other ways to divide inputs, the likeliest first.

    One input goes whole, or along another dimension, or by items; all go along the second dimension; or two
    inputs go otherwise.
    """
    ways = list(_ways(inputs, parts, split))
    tried = [dict([way]) for way in ways]
    seconds = [
        name
        for name in parts.divided
        if name not in split and _sizes_at(inputs[name], 1) and not list(lists_in(inputs[name]))
    ]
    if len(seconds) > 1:
        tried.insert(len(parts.divided), dict.fromkeys(seconds, 1))
    elif seconds and (seconds[0], 1) not in ways:  # then the batch has another size
        tried.insert(len(parts.divided), {seconds[0]: 1})
    pairs = (
        {one[0]: one[1], other[0]: other[1]} for one, other in combinations(ways, 2) if one[0] != other[0]
    )
    for way in islice((one for group in (tried, pairs) for one in group), _MOST):
        yield {**split, **way}


def _ways(inputs: Mapping[str, Any], parts: Parted, split: Split) -> Iterator[tuple[str, How]]:
    """One input, and how else it may be divided."""
    rows = sum(parts.rows)
    small_first = sorted(parts.divided, key=lambda name: sum(t.numel() for t in tensors_in(inputs[name])))
    for name in small_first:
        yield name, None
    for name, value in inputs.items():
        now = split.get(name, 0 if name in parts.divided else None)
        for dim in range(_DIMS):
            if dim != now and _sizes_at(value, dim) == {rows}:
                yield name, dim
        if now != ITEMS and any(len(one) >= len(parts.rows) for one in lists_in(value)):
            yield name, ITEMS


def _sizes_at(value: Any, dim: int) -> set[int]:
    """The sizes of an input's tensors along a dimension; none if one of them does not have it."""
    tensors = list(tensors_in(value))
    return {one.shape[dim] for one in tensors} if all(one.dim() > dim for one in tensors) else set()
