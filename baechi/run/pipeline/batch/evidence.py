"""Which rule weighs the losses of microbatches: the one that gives the loss of a few rows of a batch.

    a few rows, as one batch          loss 3.90
    in two parts   3.21, 5.80         by rows 4.51    by labels 3.90 ◀    summed 9.01

A false rule may fit a few rows by accident. So the one that is left must give the loss of others, which it
was not fitted to, and gives no weight only to what gives no loss. If several rules do, they are asked again
when they first disagree. If none does, the loss couples the rows of the batch (contrastive losses, losses of
experts): microbatches train something else then, which is said.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.candidates import is_usual, notable, rules_for
from baechi.run.pipeline.batch.few_rows import FewRows, RowChoice
from baechi.run.pipeline.batch.looking import CallWhole, Seen, Way, seen
from baechi.run.pipeline.batch.rounding import as_good, is_rounding, same_rows
from baechi.run.pipeline.batch.shares import ROWS, Rule, differ, shares_by
from baechi.run.pipeline.batch.signalled import says_nothing_of_rows
from baechi.run.pipeline.batch.splitting import Parted, Split

logger = logging.getLogger(__name__)

_NEAR = 2e-2
"""The rule that is nearest to a loss that couples rows weighs its parts if it is so near: it has a small term
that couples them."""


@dataclass
class _Batch:
    """A batch that the model is asked about, and what was asked so far."""

    model: nn.Module
    parts: Parted
    inputs: Inputs
    call: CallWhole
    split: Split
    asked: set[tuple[int, ...]] = field(default_factory=set)
    way: Way | None = None

    @cached_property
    def rows(self) -> RowChoice:
        """Which of its rows are asked about."""
        return RowChoice(self.model, self.parts, self.inputs, self.split)


class _Fails(Exception):
    """The model's code raised an error for a few rows."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


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
        self._ended = False
        self._confirmed: set[Rule] = set()
        self._idle: set[Rule] = set()
        self._searched: set[Rule] = set()
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
        if not all(rule.is_for(parts) for rule in self._settled):
            return ROWS.weigh(parts)  # as without labels, when there is no loss
        batch = _Batch(model, parts, inputs, call, self._split)
        try:
            return self._rule(batch).weigh(parts)
        except _Fails as failed:
            self._leave_unknown(failed.error)
            return (self._settled[0] if self._settled else ROWS).weigh(parts)

    def _rule(self, batch: _Batch) -> Rule:
        """The rule for a batch: the first one that nothing speaks against."""
        parts = batch.parts
        candidates = list(self._settled)
        if not self._ended:
            candidates = list(dict.fromkeys([*candidates, *rules_for(parts, self._against)]))
        rules = candidates
        while True:
            rules = self._told_apart(rules, batch)
            first = rules[0]
            if not self._ended and first not in self._confirmed:
                rules = self._confirmed_by(candidates, rules, batch)
            elif (loss := self._loss_left_out(first, batch)) is None:
                return first
            else:
                rules = self._without(rules, loss)

    def _told_apart(self, rules: list[Rule], batch: _Batch) -> list[Rule]:
        """The rules that are left when rows were asked about that tell the first one from others."""
        about = notable(rules, batch.parts)
        while not self._ended and (other := _other_than_first(rules, [*about, *self._settled], batch.parts)):
            few = batch.rows.telling((rules[0], other))
            kept = self._asked(rules, batch, few)
            if len(kept) == len(rules):
                if is_usual(other):
                    self._say_doubt(rules[0], other)
                break  # another batch may tell
            rules = kept
        return rules

    def _confirmed_by(self, candidates: list[Rule], rules: list[Rule], batch: _Batch) -> list[Rule]:
        """The rules that are left when rows were asked about that the first was not fitted to."""
        first = rules[0]
        for few in batch.rows.confirming([first, *candidates]):
            if few.numbers in batch.asked:
                continue
            rules = self._asked(rules, batch, few)
            if self._ended or rules[0] is not first:
                return rules
        self._confirmed.add(first)
        return rules

    def _loss_left_out(self, rule: Rule, batch: _Batch) -> float | None:
        """The loss of rows that count nothing by a rule; None if they give none, or there are none."""
        if rule.reads is None or rule in self._idle:
            return None
        (shares,) = shares_by([rule], batch.parts)
        idle = next((p for p, share in zip(batch.parts.parts, shares, strict=True) if share == 0), None)
        if idle is None and rule not in self._searched:
            idle = batch.rows.idle(rule)
        self._searched.add(rule)
        losses = None if idle is None else self._seen(batch, idle, ()).losses()
        if losses is None:
            return None
        if _is_some(losses.together):
            return float(losses.together)
        self._idle.add(rule)
        return None

    def _without(self, rules: list[Rule], loss: float) -> list[Rule]:
        """The rules without the first one, which leaves out a loss; rows if none is left."""
        first, *others = rules
        self._against.add(first)
        if self._ended or not others:
            self.couples = self._ended = True
            self._say(
                "the loss of rows that count nothing by %s is %.9g, not 0, and no other rule gives the loss "
                "of the batch from those of its parts: microbatches are weighed by rows, and train another "
                "objective. Use microbatches=1, or say how the parts count with loss_weights=",
                first.name,
                loss,
            )
            others = [ROWS]
        self._settled = [] if ROWS in others and not self._ended else others
        return others

    def _seen(self, batch: _Batch, rows: Inputs, parts: Sequence[Inputs]) -> Seen:
        trains = self._trains and batch.way in (None, Way.STILL)
        try:
            found = seen(batch.model, batch.call, rows, parts, trains=trains, known=batch.way is not None)
        except Exception as error:  # the model's code may raise anything on few rows
            if says_nothing_of_rows(error):
                raise
            raise _Fails(error) from error
        batch.way = found.way
        return found

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

    def _asked(self, rules: list[Rule], batch: _Batch, few: FewRows) -> list[Rule]:
        """The rules that give the loss of a few rows from those of two parts; notes what is settled."""
        batch.asked.add(few.numbers)
        found = self._seen(batch, few.together, few.halves.parts)
        losses = found.losses()
        if losses is None:
            self.couples = not same_rows(found.together, found.apart, few.halves.rows)
            return self._end(ROWS)
        expected = float(losses.together)
        if not isfinite(expected):
            return rules  # all are ignored, say: that tells nothing
        shares = shares_by(rules, few.halves)
        given = [_sum(each, losses.apart) for each in shares]
        errors = [
            inf if _leaves_out(each, losses.apart) or not isfinite(one) else abs(one - expected)
            for each, one in zip(shares, given, strict=True)
        ]
        self.couples = not is_rounding(min(errors), batch.model, batch.call, few, losses)
        if self.couples:
            nearest = errors.index(min(errors))
            is_near = errors[nearest] <= _NEAR * max(1.0, abs(expected))
            self._say_coupled(sum(few.halves.rows), expected, given[nearest])
            return self._end(rules[nearest] if is_near else ROWS)
        at_most = min(errors) + as_good(losses.together)
        kept = [rule for rule, error in zip(rules, errors, strict=True) if error <= at_most]
        self._against.update(rule for rule in rules if rule not in kept)
        if ROWS not in kept:  # else labels that are yet to come may be ignored
            self._settled = kept
        return kept

    def _end(self, rule: Rule) -> list[Rule]:
        """Nothing is asked any more but whether what counts nothing gives no loss."""
        self._ended, self._settled = True, [rule]
        return self._settled

    def _say_coupled(self, rows: int, together: float, apart: float) -> None:
        self._say(
            "the loss of %d rows is %.9g, and %.9g from two microbatches of them: it couples the rows of the "
            "batch, and microbatches train another objective. Use microbatches=1, or say how the parts count "
            "with loss_weights=",
            rows,
            together,
            apart,
        )


def _other_than_first(rules: list[Rule], about: list[Rule], parts: Parted) -> Rule | None:
    """The first of the rules that are asked about by which parts count otherwise than by the first."""
    first, *others = shares_by(rules, parts)
    return next(
        (
            rule
            for rule, found in zip(rules[1:], others, strict=True)
            if differ(first, found) and rule in about
        ),
        None,
    )


def _sum(shares: list[float], losses: list[torch.Tensor]) -> float:
    """What does not count may be no number: a mean over no labels."""
    return sum([share * float(loss) for share, loss in zip(shares, losses, strict=True) if share])


def _leaves_out(shares: list[float], losses: list[torch.Tensor]) -> bool:
    """Whether a part that gives a loss counts nothing."""
    return any(not share and _is_some(loss) for share, loss in zip(shares, losses, strict=True))


def _is_some(loss: torch.Tensor) -> bool:
    """Whether a loss is one: zero is none, and a mean over nothing is no number."""
    return isfinite(float(loss)) and float(loss) != 0
