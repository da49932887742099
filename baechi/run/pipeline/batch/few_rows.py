"""Rows of a batch that the model is asked about.

to tell two rules apart    one half counts least by the first, the other half most
to confirm a rule          rows that each other rule counts least; rows that share labels, one in each half
to give no weight          rows that count nothing by the rule
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import atan2, isfinite

from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.shares import Rule, differ, shares_by, tensors_of
from baechi.run.pipeline.batch.splitting import Parted, Split, parted, some_rows

_MOST, _FEWEST, _TWO = 8, 4, 2
"""So many rows are asked about. Two single rows fit a rule by accident: the largest of two losses is one."""

_INPUTS = 3
"""Of so many inputs, the rows are asked about that count least and most by them."""

_SEEN = 64
"""Among so many rows, evenly over the batch, those are chosen that are asked about."""


@dataclass(frozen=True)
class FewRows:
    """A few rows of a batch.

    Args:
        numbers: of the rows, in their order.
        together: the rows.
        halves: the same in two parts.
        twice: the rows of the second half, each of them twice; no more rows than `together`.
    """

    numbers: tuple[int, ...]
    together: Inputs
    halves: Parted
    twice: Inputs


class RowChoice:
    """Which rows of a batch are asked about.

    Args:
        model: the model.
        parts: the batch in microbatches; at least two.
        inputs: the batch.
        split: exceptions from how inputs are split.
    """

    def __init__(self, model: nn.Module, parts: Parted, inputs: Inputs, split: Split) -> None:
        self._model, self._inputs, self._split = model, inputs, split
        rows = sum(parts.rows)
        self._there = range(0, rows, -(-rows // _SEEN))
        self._count = min(_MOST, max(_FEWEST, *parts.rows), rows)
        each = parted(model, inputs, rows, split)  # views: no row is copied
        rows_seen = tuple(each.parts[row] for row in self._there)
        self._each = replace(each, parts=rows_seen, rows=(1,) * len(self._there))

    def telling(self, rules: tuple[Rule, Rule]) -> FewRows:
        """Rows that tell two rules apart, as far as any do; as many as a microbatch has find room.

        Args:
            rules: the two.
        """
        return self._halved(self._telling(rules))

    def confirming(self, rules: Sequence[Rule]) -> list[FewRows]:
        """Rows that the first rule has not been fitted to: at the ends of any rule; pairs that share labels.

        Args:
            rules: the one to confirm, and then all that may hold for the batch, the likeliest first.
        """
        first, *others = rules
        read = {other.reads: other for other in reversed(others) if other.reads is not None}
        told = [self._telling((first, other)) for other in list(read.values())[:_INPUTS]]
        ends = list(self._at_ends(others))
        return [self._halved(rows) for rows in (*_otherwise(ends[0]), *ends[1:], *self._alike(), *told)]

    def idle(self, rule: Rule) -> Inputs | None:
        """Rows that count nothing by a rule; None if there are none.

        Args:
            rule: the rule.
        """
        (shares,) = shares_by([rule], self._each)
        idle = [row for row, share in zip(self._there, shares, strict=True) if share == 0]
        return some_rows(self._model, self._inputs, idle[: self._count], self._split) if idle else None

    def _halved(self, rows: Sequence[int]) -> FewRows:
        """These rows, together and in two halves."""
        middle = (len(rows) + 1) // 2
        first, second = rows[:middle], rows[middle:]
        whole, *halves, twice = (
            some_rows(self._model, self._inputs, some, self._split)
            for some in (rows, first, second, [*second, *second])
        )
        return FewRows(tuple(rows), whole, Parted(tuple(halves), (len(first), len(second)), ()), twice)

    def _telling(self, rules: tuple[Rule, Rule]) -> Sequence[int]:
        """Rows that tell two rules apart; the first ones if none do."""
        one, other = shares_by(rules, self._each)
        angles = {
            row: atan2(a, b)
            for row, a, b in zip(self._there, one, other, strict=True)
            if isfinite(a) and isfinite(b) and (a or b)  # else it counts nothing by both
        }
        ranked = sorted(angles, key=angles.__getitem__)
        if len(ranked) < _TWO or not differ([angles[ranked[0]]], [angles[ranked[-1]]]):
            return range(self._count)
        few = min(self._count, len(ranked)) // 2
        return [*ranked[:few], *ranked[len(ranked) - few :]]

    def _at_ends(self, rules: Sequence[Rule]) -> Iterator[list[int]]:
        """The rows that rules count least, and most: in one group, or in two if they find no room in one."""
        ends: dict[int, None] = {}
        for rule in rules:
            (shares,) = shares_by([rule], self._each)
            if all(map(isfinite, shares)) and differ([min(shares)], [max(shares)]):
                ends.update(
                    dict.fromkeys(self._there[shares.index(end)] for end in (min(shares), max(shares)))
                )
            if len(ends) >= 2 * self._count:
                break
        chosen = list(ends)[: 2 * self._count]
        for begin in range(0, max(1, len(chosen)), self._count):
            yield self._filled(chosen[begin : begin + self._count])

    def _alike(self) -> Iterator[list[int]]:
        """Pairs of rows that share a label, one of each pair in each half; for the first labels of rows."""
        for name, tensor in tensors_of(self._each.parts[0]).items():
            if tensor.shape == (1,) and not tensor.is_floating_point() and not tensor.is_complex():
                labels = [int(tensors_of(part)[name]) for part in self._each.parts]
                by_label: dict[int, list[int]] = {}
                for row, label in zip(self._there, labels, strict=True):
                    by_label.setdefault(label, []).append(row)
                ranked = sorted(by_label.values(), key=len, reverse=True)
                pairs = [rows[:2] for rows in ranked if len(rows) > 1][: self._count // 2]
                if pairs:
                    rest = self._filled([row for pair in pairs for row in pair])[2 * len(pairs) :]
                    half = len(rest) // 2
                    firsts, seconds = zip(*pairs, strict=True)
                    yield [*firsts, *rest[:half], *seconds, *rest[half:]]
                return

    def _filled(self, rows: list[int]) -> list[int]:
        """As many as are asked about: with others evenly over the batch."""
        evenly = self._there[:: max(1, len(self._there) // self._count)]
        others = [row for row in dict.fromkeys([*evenly, *self._there]) if row not in rows]
        return [*rows, *others[: self._count - len(rows)]]


def _otherwise(rows: list[int]) -> Iterator[list[int]]:
    """The same rows in other halves: four, of which two count, have both of them in one half of some."""
    yield rows
    if len(rows) >= _FEWEST:
        yield [*rows[::2], *rows[1::2]]
        quarter = len(rows) // 4
        yield [*rows[:quarter], *rows[len(rows) - quarter :], *rows[quarter : len(rows) - quarter]]
