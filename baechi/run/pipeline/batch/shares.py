"""What the loss of each microbatch counts in the loss of the batch.

    mean over rows                      rows of the microbatch / rows
    mean over labels                    its labels that are not ignored / all such labels
    mean weighed by a mask              the sum of its mask / the sum of the mask
    mean over known targets             its targets that are numbers / all such targets
    sum, or divided by a given number   1

A mean of means is another number where labels are ignored unevenly. Nothing in a signature says which one a
model computes, so the judge asks the model (`judge`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from baechi.errors import BaechiError
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.partition import Parted
from baechi.torchlib.tensors.pytree import named_tensors

_ALIKE = 1e-9
"""Shares that are not further apart are the same."""

Weigh = Callable[[Parted], list[Any]]


@dataclass(frozen=True)
class Rule:
    """A rule for what the losses of microbatches count. Rules with one name are the same.

    Args:
        name: in words.
        weigh: from the parts of a batch, a number or a scalar tensor for each.
        reads: the input that it looks at, if any.
        ignored: the label that it leaves out, if it counts labels.
    """

    name: str
    weigh: Weigh = field(compare=False)
    reads: str | None = None
    ignored: int | None = None

    def is_for(self, parts: Parted) -> bool:
        """Whether a batch has what the rule looks at."""
        return self.reads is None or all(self.reads in tensors_of(part) for part in parts.parts)


def by_rows(parts: Parted) -> list[Any]:
    """Shares of losses that are means over rows."""
    total = sum(parts.rows)
    return [rows / total for rows in parts.rows]


def summed(parts: Parted) -> list[Any]:
    """Shares of losses that add up to that of the batch."""
    return [1.0] * len(parts.rows)


ROWS, SUM = Rule("rows", by_rows), Rule("sum", summed)


def _fractions(counts: Sequence[torch.Tensor]) -> list[Any]:
    """What each count is of all; where there is nothing to count, all parts have the same loss."""
    total = torch.stack(list(counts)).sum()
    return [torch.where(total == 0, 1 / len(counts), count / total) for count in counts]


def by_labels(name: str, ignored: int, skipped: int) -> Rule:
    """The rule of losses that are means over labels."""

    def weigh(parts: Parted) -> list[Any]:
        counts = []
        for counted in _counted(parts, name, skipped):
            counts.append((counted != ignored).sum().to(_precise(counted)))
        return _fractions(counts)

    return Rule(f"labels in {name} other than {ignored}{_but_for(skipped)}", weigh, name, ignored)


def by_amounts(name: str, skipped: int) -> Rule:
    """The rule of losses that are means weighed by an input: by a mask of zeros and ones, say."""

    def weigh(parts: Parted) -> list[Any]:
        amounts = [one.detach().sum(dtype=_precise(one)) for one in _counted(parts, name, skipped)]
        return _fractions(amounts)

    return Rule(f"the sum of {name}{_but_for(skipped)}", weigh, name)


def by_numbers(name: str) -> Rule:
    """The rule of losses that are means over the entries of an input that are numbers."""

    def weigh(parts: Parted) -> list[Any]:
        counts = [(~one.isnan()).sum().to(_precise(one)) for one in _counted(parts, name, 0)]
        return _fractions(counts)

    return Rule(f"entries of {name} that are numbers", weigh, name)


@dataclass(frozen=True)
class Told:
    """What a user says that losses count. (It goes into files with the model.)

    Args:
        how: `"rows"`, `"sum"`, `"labels"`, or a function of the microbatches' inputs.
    """

    how: Literal["rows", "sum", "labels"] | Callable[[list[Inputs]], list[Any]]

    def rule(self) -> Rule | None:
        """The rule; None for `"labels"`: which ones is found out."""
        if self.how == "labels":
            return None
        if not callable(self.how):
            return ROWS if self.how == "rows" else SUM
        own = self.how

        def weigh(parts: Parted) -> list[Any]:
            shares = own(list(parts.parts))
            if not isinstance(shares, (list, tuple)) or len(shares) != len(parts.parts):
                raise BaechiError(
                    f"loss_weights returned {shares!r:.100} for {len(parts.parts)} microbatches: it has to "
                    "return a list with a number for each"
                )
            return list(shares)

        return Rule("loss_weights", weigh)


def shares_by(rules: Sequence[Rule], parts: Parted) -> list[list[float]]:
    """What the parts of a batch count by each rule, as numbers."""
    found = [rule.weigh(parts) for rule in rules]
    return [
        torch.stack(shares).tolist() if isinstance(shares[0], torch.Tensor) else shares for shares in found
    ]


def differ(one: Sequence[float], other: Sequence[float], by: float = _ALIKE) -> bool:
    """Whether parts count otherwise by one rule than by another; no number differs from all."""
    return any(not abs(a - b) <= by * max(abs(a), abs(b)) for a, b in zip(one, other, strict=True))


def tensors_of(part: Any) -> dict[str, torch.Tensor]:
    """The tensors of a part of a batch, by name."""
    args = {name: t for index, value in enumerate(part.args) for name, t in named_tensors(str(index), value)}
    kwargs = {name: t for key, value in part.kwargs.items() for name, t in named_tensors(key, value)}
    return {**args, **kwargs}


def _counted(parts: Parted, name: str, skipped: int) -> list[torch.Tensor]:
    each = [tensors_of(part)[name] for part in parts.parts]
    return [one[..., skipped:] for one in each] if skipped else each


def _but_for(skipped: int) -> str:
    return ", but for the first of each row" * bool(skipped)


def _precise(tensor: torch.Tensor) -> torch.dtype:
    """The most precise dtype where a tensor lies."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64
