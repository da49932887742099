"""Rows of a batch that tell two rules apart: one half counts least by the first, the other half most."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import atan2, isfinite

from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.shares import Rule, differ, shares_by
from baechi.run.pipeline.batch.splitting import Parted, Split, parted, some_rows

_MOST, _FEWEST = 8, 2

_SEEN = 64
"""Among so many rows, evenly over the batch, those are chosen that are asked about."""


@dataclass(frozen=True)
class FewRows:
    """A few rows of a batch.

    Args:
        together: the rows.
        halves: the same in two parts.
        twice: the rows of the second half, each of them twice; no more rows than `together`.
    """

    together: Inputs
    halves: Parted
    twice: Inputs


def telling_rows(
    model: nn.Module, parts: Parted, inputs: Inputs, rules: tuple[Rule, Rule], split: Split
) -> FewRows:
    """Rows that tell two rules apart, as far as any do; as many as a microbatch has find room.

    Args:
        model: the model.
        parts: the batch in microbatches; at least two.
        inputs: the batch.
        rules: the two.
        split: exceptions from how inputs are split.
    """
    count = min(_MOST, max(_FEWEST, *parts.rows))
    numbers = _chosen(model, inputs, sum(parts.rows), count, rules, split)
    middle = (len(numbers) + 1) // 2
    first, second = numbers[:middle], numbers[middle:]
    halves = tuple(some_rows(model, inputs, half, split) for half in (first, second))
    return FewRows(
        some_rows(model, inputs, numbers, split),
        Parted(halves, (len(first), len(second)), ()),
        some_rows(model, inputs, [*second, *second], split),
    )


def _chosen(
    model: nn.Module, inputs: Inputs, rows: int, count: int, rules: tuple[Rule, Rule], split: Split
) -> Sequence[int]:
    there = range(0, rows, -(-rows // _SEEN))
    each = parted(model, inputs, rows, split)  # views: no row is copied
    each = replace(each, parts=tuple(each.parts[row] for row in there), rows=(1,) * len(there))
    one, other = shares_by(rules, each)
    angles = {
        row: atan2(a, b)
        for row, a, b in zip(there, one, other, strict=True)
        if isfinite(a) and isfinite(b) and (a or b)  # else it counts nothing by both
    }
    ranked = sorted(angles, key=angles.__getitem__)
    if len(ranked) < _FEWEST or not differ([angles[ranked[0]]], [angles[ranked[-1]]]):
        return range(min(count, rows))
    few = min(count, len(ranked)) // 2
    return [*ranked[:few], *ranked[len(ranked) - few :]]
