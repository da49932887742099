"""Along which dimension the outputs of microbatches are joined: the one that grows with the rows of a batch.

    three rows   logits (3, 5)    hidden (2, 3, 16)    boxes [3 items]    counts (4,)
    two rows     logits (2, 5)    hidden (2, 2, 16)    boxes [2 items]    counts (4,)
    joined       along 0          along 1              one after another  not

A dimension that only happens to be as long as a microbatch has rows is none of them.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.joining import below
from baechi.run.pipeline.batch.splitting import Split, rows_of, some_rows

_MOST_ROWS = 3

Dimensions = Mapping[str, int | None]
"""By an output's name the dimension of its rows, 0 for a list with an item for each; None for neither."""

Look = Callable[[Inputs], Any]
"""What the model returns for a few rows; nothing of it changes."""


def dimensions_of(model: nn.Module, inputs: Inputs, split: Split, look: Look) -> Dimensions:
    """Look at the outputs of a few rows of a batch, and of one less.

    Args:
        model: the model.
        inputs: the batch.
        split: exceptions from how inputs are split.
        look: calls the model.

    Returns:
        By name; an output that is not in it is not known.
    """
    count = min(_MOST_ROWS, rows_of(model, inputs, split) or 0)
    if count < 2:
        return {}
    more, fewer = [look(some_rows(model, inputs, range(rows), split)) for rows in (count, count - 1)]
    return dict(_grown(more, fewer, count))


def _grown(more: Any, fewer: Any, rows: int, name: str = "") -> Iterator[tuple[str, int | None]]:
    """What is known of two results, of so many rows and of one less."""
    if type(more) is not type(fewer):
        return
    if isinstance(more, torch.Tensor):
        if more.dim() and more.dim() == fewer.dim():
            yield name, _grown_dimension(tuple(more.shape), tuple(fewer.shape), rows)
    elif isinstance(more, Mapping):
        for key in more.keys() & fewer.keys():
            yield from _grown(more[key], fewer[key], rows, below(name, key))
    elif isinstance(more, (list, tuple)):
        if isinstance(more, list) and (len(more), len(fewer)) == (rows, rows - 1):
            yield name, 0
        elif len(more) == len(fewer):
            for index, pair in enumerate(zip(more, fewer, strict=True)):
                yield from _grown(*pair, rows, below(name, index))
    elif dataclasses.is_dataclass(more):
        for field in dataclasses.fields(more):
            pair = getattr(more, field.name), getattr(fewer, field.name)
            yield from _grown(*pair, rows, below(name, field.name))


def _grown_dimension(more: tuple[int, ...], fewer: tuple[int, ...], rows: int) -> int | None:
    differ = [dim for dim, sizes in enumerate(zip(more, fewer, strict=True)) if sizes[0] != sizes[1]]
    if len(differ) != 1 or (more[differ[0]], fewer[differ[0]]) != (rows, rows - 1):
        return None
    return differ[0]
