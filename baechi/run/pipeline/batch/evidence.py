"""Which rule weighs the losses of microbatches: the one that gives the loss of a few rows of a batch.

    a few rows, as one batch          loss 3.90
    in two parts   3.21, 5.80         by rows 4.51    by labels 3.90 ◀    summed 9.01

If several rules do, they are asked again when they first disagree. If none does, the loss couples the rows
of the batch (contrastive losses, losses of experts): microbatches train something else then, which is said.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import torch
from torch import nn

from baechi.errors import BaechiError
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.joining import objective_in
from baechi.run.pipeline.batch.shares import ROWS, Rule, rules_for
from baechi.run.pipeline.batch.splitting import Parted, Split, parted, rows_of, some_rows
from baechi.torchlib.fakes.valueless import is_valueless
from baechi.torchlib.modules.as_found import left_as_found
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

logger = logging.getLogger(__name__)

_ROWS, _FEWEST_ROWS = 8, 2
_TOLERANCE, _ROUGHLY = 2e-4, 2e-2
"""How far a loss may be from that of a few rows: of 32 bits or more (models cast inside), and of less."""

_ROUNDING = 32
"""A rule is as good as the best one if it is behind by so many units in the last place."""

_ALIKE = 1e-9

_SEEN = 64
"""Among so many rows of a batch those are chosen that are asked about."""

CallWhole = Callable[[Inputs], Any]
"""Calls the model with a batch as it is; the result has the loss."""


class Evidence:
    """The rules that nothing has spoken against yet.

    Args:
        split: exceptions from how inputs are split.
        tells: whether a loss that couples rows, or of which nothing is known, is logged.

    Attributes:
        rules: the rules; empty before the first batch.
        couples: whether the rows of a batch are coupled: no rule gives the loss of a few rows, or, without a
            loss, their outputs are others in parts; or nothing is known, as the model fails on a few rows.
    """

    def __init__(self, split: Split, *, tells: bool = True) -> None:
        self.rules: list[Rule] = []
        self.couples = False
        self._split, self._tells, self._doubted = split, tells, False

    def shares(self, model: nn.Module, parts: Parted, inputs: Inputs, call: CallWhole) -> list[Any]:
        """What the losses of a batch's microbatches count.

        Args:
            model: the model.
            parts: the parts of the batch.
            inputs: the batch.
            call: calls the model with a batch.
        """
        if not self.rules:
            self.rules = list(rules_for(parts))
            self._ask(model, inputs, call, max(parts.rows))
        elif not all(rule.is_for(parts) for rule in self.rules):
            return ROWS.weigh(parts)  # as without labels, when there is no loss
        elif len(self.rules) > 1 and self._disagree(parts):
            self._ask(model, inputs, call, max(parts.rows))
        if len(self.rules) > 1 and not self._doubted and self._disagree(parts):
            self._doubted = True
            self._log(
                "a few rows do not tell what the losses of microbatches count: it is taken to be %s, and %s "
                "would do as well. Say it with loss_weights=",
                self.rules[0].name,
                self.rules[1].name,
            )
        return self.rules[0].weigh(parts)

    def _log(self, text: str, *values: object) -> None:
        logger.log(logging.WARNING if self._tells else logging.DEBUG, text, *values)

    def _disagree(self, parts: Parted) -> bool:
        found = [[float(share) for share in rule.weigh(parts)] for rule in self.rules]
        return any(
            abs(one - first) > _ALIKE
            for shares in found[1:]
            for one, first in zip(shares, found[0], strict=True)
        )

    def _ask(self, model: nn.Module, inputs: Inputs, call: CallWhole, fit: int) -> None:
        """Leave only the rules that give the loss of a few rows; as many as a microbatch has find room."""
        numbers = self._telling(model, inputs, min(_ROWS, max(_FEWEST_ROWS, fit)))
        if len(numbers) < _FEWEST_ROWS:
            self.rules = self.rules[-2:-1]  # one row says nothing: by rows
            return
        rows = some_rows(model, inputs, numbers, self._split)
        parts = parted(model, rows, 2, self._split)
        for training in (False, True) if model.training else (False,):
            try:
                result, *results = [looked(model, call, one, training) for one in (rows, *parts.parts)]
            except BaechiError:
                raise
            except Exception as error:  # the model's code may raise anything on few rows
                if training:
                    break
                self._log(
                    "what the losses of microbatches count is not known, since the model fails on a few "
                    "rows: by rows, unless loss_weights= says otherwise. (%s: %s)",
                    type(error).__name__,
                    error,
                )
                self.rules, self.couples = [ROWS], True
                return
            whole, each = objective_in(result), [objective_in(one) for one in results]
            if whole is not None and all(one is not None for one in each):
                self._judge(parts, whole, each)
                return
            if not training:
                apart = _same_rows(result, results, parts.rows)
        self.rules, self.couples = [ROWS], not apart

    def _telling(self, model: nn.Module, inputs: Inputs, count: int) -> list[int]:
        """Rows that tell the rules apart: the one half counts least by one of them, the other half most."""
        rows = rows_of(model, inputs, self._split) or 0
        there = min(_SEEN, rows)
        first = list(range(min(count, there)))
        if there <= _FEWEST_ROWS:
            return first
        each = parted(model, inputs, rows, self._split)  # views: no row is copied
        each = replace(each, parts=each.parts[:there], rows=each.rows[:there])
        for rule in self.rules:
            shares = [float(share) for share in rule.weigh(each)]
            if max(shares) - min(shares) > _ALIKE:
                ranked = sorted(range(there), key=shares.__getitem__)
                few = min(count, there) // 2
                return [*ranked[:few], *ranked[there - few :]]
        return first

    def _judge(self, parts: Parted, whole: torch.Tensor, each: list[Any]) -> None:
        """Leave only the rules that give the loss of the whole from those of its parts."""
        expected = float(whole)
        given = [_sum(rule.weigh(parts), each) for rule in self.rules]
        errors = [abs(one - expected) if isfinite(one) else inf for one in given]
        scale = max(1.0, abs(expected))
        if min(errors) <= _tolerance(whole) * scale:
            at_most = min(errors) + _ROUNDING * _step(whole) * scale
            self.rules = [r for r, error in zip(self.rules, errors, strict=True) if error <= at_most]
            return
        self.rules, self.couples = [ROWS], True
        nearest = min(given, key=lambda one: abs(one - expected))
        self._log(
            "the loss of %d rows is %.6g, and %.6g from two microbatches of them: it couples the rows of the "
            "batch, and microbatches train another objective. Use microbatches=1, or say how the parts count "
            "with loss_weights=",
            sum(parts.rows),
            expected,
            nearest,
        )


def looked(model: nn.Module, call: CallWhole, inputs: Inputs, training: bool) -> Any:
    """What a call gives without gradients, with copies of its inputs; nothing of the model changes.

    Args:
        model: the model.
        call: calls it.
        inputs: a few rows.
        training: whether in training, as a loss may be made there only; else in evaluation.
    """
    with torch.no_grad(), _buffers_kept(model), left_as_found(model, contents="none"):
        for module in model.modules() if not training else ():
            module.training = False
        args, kwargs = map_tensors(torch.clone, (inputs.args, inputs.kwargs))
        return call(Inputs(*args, **kwargs))


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Put back what the model's code writes in buffers, in evaluation too: counts, say. This takes no time of
    emulated devices."""
    with without_dispatch_modes():
        data = [buffer.data for buffer in model.buffers() if buffer.layout == torch.strided]
        before = [(one, one.clone()) for one in data if not (one.is_meta or is_valueless(one))]
    try:
        yield
    finally:
        with without_dispatch_modes():
            for one, content in before:
                if not torch.equal(one, content):
                    one.copy_(content)


def _same_rows(whole: Any, parts: list[Any], rows: tuple[int, ...]) -> bool:
    """Whether outputs with a row for each row of the batch have the same rows in its parts."""
    begun = [sum(rows[:number]) for number in range(len(rows))]
    for part, first, count in zip(parts, begun, rows, strict=True):
        for one, other in zip(tensors_in(whole), tensors_in(part), strict=False):
            if one.is_floating_point() and one.dim() and len(one) == sum(rows) and len(other) == count:
                one, other = one.cpu(), other.cpu()  # what functional ops make may lie on several devices
                near = _tolerance(one) * max(1.0, float(one.abs().max()))
                if not torch.allclose(one.narrow(0, first, count), other, rtol=0, atol=near):
                    return False
    return True


def _sum(shares: list[Any], losses: list[Any]) -> float:
    """What does not count may be no number: a mean over no labels."""
    counted = [(float(share), loss) for share, loss in zip(shares, losses, strict=True)]
    return sum([share * float(loss) for share, loss in counted if share])


def _tolerance(loss: torch.Tensor) -> float:
    return _TOLERANCE if loss.dtype in (torch.float32, torch.float64) else _ROUGHLY


def _step(loss: torch.Tensor) -> float:
    """A unit in the last place of a loss near 1."""
    return max(torch.finfo(loss.dtype).eps, torch.finfo(torch.float32).eps)
