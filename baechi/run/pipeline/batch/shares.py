"""What the loss of each microbatch counts in the loss of the batch.

    mean over rows                      rows of the microbatch / rows
    mean over labels                    its labels that are not ignored / all such labels
    sum, or divided by a given number   1

A mean of means is another number where labels are ignored unevenly. Nothing in a signature says which one a
model computes, so evidence does (`evidence`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from baechi.run.pipeline.batch.splitting import Parted
from baechi.torchlib.tensors.pytree import named_tensors

_IGNORED = (-100, 0, -1)
"""Labels that losses leave out: torch's default first, then what models use for padding."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)

Weigh = Callable[[Parted], list[Any]]


@dataclass(frozen=True)
class Rule:
    """A rule for what the losses of microbatches count.

    Args:
        name: in words.
        weigh: from the parts of a batch, a number or a scalar tensor for each.
        reads: the input that it looks at, if any.
    """

    name: str
    weigh: Weigh
    reads: str | None = None

    def is_for(self, parts: Parted) -> bool:
        """Whether a batch has what the rule looks at.

        Args:
            parts: the parts of the batch.
        """
        return self.reads is None or all(self.reads in _tensors(part) for part in parts.parts)


def by_rows(parts: Parted) -> list[Any]:
    """Shares of losses that are means over rows.

    Args:
        parts: the parts of the batch.
    """
    total = sum(parts.rows)
    return [rows / total for rows in parts.rows]


def summed(parts: Parted) -> list[Any]:
    """Shares of losses that add up to that of the batch.

    Args:
        parts: the parts of the batch.
    """
    return [1.0] * len(parts.rows)


ROWS, SUM = Rule("rows", by_rows), Rule("sum", summed)


def by_labels(name: str, ignored: int, skipped: int) -> Rule:
    """The rule of losses that are means over labels.

    Args:
        name: of the input with labels.
        ignored: the label that the loss leaves out.
        skipped: how many labels of each row it leaves out at the beginning: 1 if it predicts the next token.
    """

    def weigh(parts: Parted) -> list[Any]:
        counts = []
        for part in parts.parts:
            labels = _tensors(part)[name]
            counted = labels[..., skipped:] if skipped else labels
            counts.append((counted != ignored).sum().to(_precise(counted)))
        total = torch.stack(counts).sum().clamp(min=1)
        return [count / total for count in counts]

    what = f"labels in {name} other than {ignored}" + (", but for the first of each row" * bool(skipped))
    return Rule(what, weigh, name)


def rules_for(parts: Parted) -> Iterator[Rule]:
    """The rules that may hold for a batch, the likeliest first.

    Args:
        parts: the parts of a batch.
    """
    named = _tensors(parts.parts[0])
    split = [name for name, tensor in named.items() if tensor.dtype in _INTEGERS and tensor.dim()]
    labels = sorted(split, key=lambda name: ("label" not in name, "target" not in name))
    for name in labels:
        for ignored in _IGNORED:
            for skipped in (0, 1) if named[name].dim() > 1 else (0,):
                yield by_labels(name, ignored, skipped)
    yield ROWS
    yield SUM


def _precise(tensor: torch.Tensor) -> torch.dtype:
    """The most precise dtype where a tensor lies."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def _tensors(part: Any) -> dict[str, torch.Tensor]:
    args = {name: t for index, value in enumerate(part.args) for name, t in named_tensors(str(index), value)}
    kwargs = {name: t for key, value in part.kwargs.items() for name, t in named_tensors(key, value)}
    return {**args, **kwargs}
