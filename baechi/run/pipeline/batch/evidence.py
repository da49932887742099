"""Which rule weighs the losses of microbatches: the one that gives the loss of a few rows of a batch.

    a few rows, as one batch          loss 3.90
    in two parts   3.21, 5.80         by rows 4.51    by labels 3.90 ◀    summed 9.01

If several rules do, they are asked again when they first disagree. If none does, the loss couples the rows
of the batch (contrastive losses, losses of experts): microbatches train something else then, which is said.
"""

import logging
from math import inf, isfinite
from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.candidates import is_usual, rules_for
from baechi.run.pipeline.batch.few_rows import FewRows, telling_rows
from baechi.run.pipeline.batch.looking import CallWhole, Seen, seen
from baechi.run.pipeline.batch.rounding import as_good, is_rounding, same_rows
from baechi.run.pipeline.batch.shares import ROWS, Rule, differ, shares_by
from baechi.run.pipeline.batch.signalled import says_nothing_of_rows
from baechi.run.pipeline.batch.splitting import Parted, Split

logger = logging.getLogger(__name__)

_NEAR = 2e-2
"""The rule that is nearest to a loss that couples rows weighs its parts if it is so near: it has a small term
that couples them."""


class Evidence:
    """The rules that nothing has spoken against yet.

    Args:
        split: exceptions from how inputs are split.
        tells: whether a loss that couples rows, or of which nothing is known, is logged.
        trains: whether a model that trains may be looked at in training where it has a loss in evaluation:
            its code may write weights there, which a look does not put back.

    Attributes:
        couples: whether the rows of a batch are coupled: no rule gives the loss of a few rows, or, without a
            loss, their outputs are others in parts; or nothing is known, as the model fails on a few rows.
    """

    def __init__(self, split: Split, *, tells: bool = True, trains: bool = True) -> None:
        self.couples = False
        self._split, self._tells, self._trains = split, tells, trains
        self._against: set[Rule] = set()
        self._settled: list[Rule] = []
        self._said: set[str] = set()

    def shares(self, model: nn.Module, parts: Parted, inputs: Inputs, call: CallWhole) -> list[Any]:
        """What the losses of a batch's microbatches count.

        Args:
            model: the model.
            parts: the parts of the batch.
            inputs: the batch.
            call: calls the model with a batch.

        Raises:
            Exception: ours, or the handler of a signal raised it. What the model's code raises is logged.
        """
        rules = self._settled or rules_for(parts, self._against)
        if not all(rule.is_for(parts) for rule in rules):
            return ROWS.weigh(parts)  # as without labels, when there is no loss
        while other := _other_than_first(rules, parts):
            few = telling_rows(model, parts, inputs, (rules[0], other), self._split)
            try:
                found = seen(model, call, few.together, few.halves.parts, trains=self._trains)
            except Exception as error:  # the model's code may raise anything on few rows
                if says_nothing_of_rows(error):
                    raise
                self._leave_unknown(error)
                return (ROWS if ROWS in rules else rules[0]).weigh(parts)
            kept = self._kept(rules, model, call, few, found)
            if len(kept) == len(rules):
                if is_usual(other):
                    self._say_doubt(rules[0], other)
                break  # another batch may tell
            rules = kept
        return rules[0].weigh(parts)

    def _leave_unknown(self, error: Exception) -> None:
        """Nothing is kept of a look that failed: another batch may be a good one."""
        self.couples = True
        self._say(
            "what the losses of microbatches count is not known, since the model fails on a few "
            "rows: by rows, unless loss_weights= says otherwise, or another batch does. (%s: %s)",
            type(error).__name__,
            error,
        )

    def _say_doubt(self, first: Rule, other: Rule) -> None:
        self._say(
            "a few rows do not tell what the losses of microbatches count: it is taken to be %s, and %s "
            "would do as well. Say it with loss_weights=",
            first.name,
            other.name,
        )

    def _say(self, text: str, *values: object) -> None:
        """Log it: loudly once, as it may be so in each step."""
        loud = self._tells and text not in self._said
        self._said.add(text)
        logger.log(logging.WARNING if loud else logging.DEBUG, text, *values)

    def _kept(
        self, rules: list[Rule], model: nn.Module, call: CallWhole, few: FewRows, found: Seen
    ) -> list[Rule]:
        """The rules that give the loss of a few rows from those of two parts; notes what is settled."""
        losses = found.losses()
        if losses is None:
            self.couples = not same_rows(found.together, found.apart, few.halves.rows)
            self._settled = [ROWS]
            return self._settled
        expected = float(losses.together)
        given = [_sum(shares, losses.apart) for shares in shares_by(rules, few.halves)]
        errors = [abs(one - expected) if isfinite(one) else inf for one in given]
        self.couples = not is_rounding(min(errors), model, call, few, losses)
        if self.couples:
            nearest = errors.index(min(errors))
            is_near = errors[nearest] <= _NEAR * max(1.0, abs(expected))
            self._settled = [rules[nearest] if is_near else ROWS]
            self._say_coupled(sum(few.halves.rows), expected, given[nearest])
            return self._settled
        at_most = min(errors) + as_good(losses.together)
        kept = [rule for rule, error in zip(rules, errors, strict=True) if error <= at_most]
        self._against.update(rule for rule in rules if rule not in kept)
        if ROWS not in kept:  # else labels that are yet to come may be ignored
            self._settled = kept
        return kept

    def _say_coupled(self, rows: int, together: float, apart: float) -> None:
        self._say(
            "the loss of %d rows is %.9g, and %.9g from two microbatches of them: it couples the rows of the "
            "batch, and microbatches train another objective. Use microbatches=1, or say how the parts count "
            "with loss_weights=",
            rows,
            together,
            apart,
        )


def _other_than_first(rules: list[Rule], parts: Parted) -> Rule | None:
    """The first rule by which the parts count otherwise than by the first one."""
    first, *others = shares_by(rules, parts)
    return next((r for r, found in zip(rules[1:], others, strict=True) if differ(first, found)), None)


def _sum(shares: list[float], losses: list[torch.Tensor]) -> float:
    """What does not count may be no number: a mean over no labels."""
    return sum([share * float(loss) for share, loss in zip(shares, losses, strict=True) if share])
