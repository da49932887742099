"""A row alone: whether chunks may be put together at all.

    chunk 0    rows 0 1 2 3 4 ──▶ y     of y, what row 4 gave
    alone               row 4 ──▶ z     has to be z; and what does not grow has to be the same in both

So has row 0, since row 4 may be what others look at. A chunk of one row is compared with two rows, and so is
a larger one where the model does not run with a single row. It is asked once for a model, and only of outputs
for which the user says no rule.
"""

from dataclasses import dataclass
from typing import Any

import torch

from baechi.dispatch.merge.equality import apart, same_but_rounding


@dataclass(frozen=True)
class Alone:
    """What a model gives for a row or two of its first chunk.

    Args:
        result: what it returned; tensors on `meta` where it ran without values.
        row: the row of the first chunk that is compared; it is the first of those that ran.
        rows: how many ran.
        chunk: how many the first chunk has.
    """

    result: Any
    row: int
    rows: int
    chunk: int

    def contradicts(self, found: Any, part: Any, dim: int | None) -> str:
        """Why a part of an output cannot be put together with others; empty if it can."""
        if not isinstance(found, torch.Tensor if isinstance(part, torch.Tensor) else type(part)):
            return ""
        if dim is None:
            if isinstance(part, torch.Tensor) and found.is_meta:
                return "all chunks have as many rows, so a constant and a count look alike"
            same = same_but_rounding(found, part) if isinstance(part, torch.Tensor) else found == part
            return "" if same else f"it is another for {_rows(self.rows)} than for {_rows(self.chunk)}"
        if found.is_meta or part.layout != torch.strided:
            return ""
        each, rest = divmod(part.shape[dim], self.chunk)
        if rest or found.shape[dim] != each * self.rows:
            return ""
        off = apart(found.narrow(dim, 0, each), part.narrow(dim, self.row * each, each), part)
        if off is None:
            return ""
        return (
            f"row {self.row} has other values (by {off:.3g}) where {_rows(self.rows)} run than where "
            f"{self.chunk} do. The model's result for a row depends on other rows, on their number, or on "
            "calls before: keep the whole batch in one chunk, unless this is meant"
        )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
