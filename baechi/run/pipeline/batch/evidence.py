"""Which rule weighs the losses of microbatches: the one that gives the loss of a few rows of a batch.

    a few rows, as one batch          loss 3.90
    in two parts   3.21, 5.80         by rows 4.51    by labels 3.90 ◀    summed 9.01

If several rules do, they are asked again when they first disagree. If none does, the loss couples the rows
of the batch (contrastive losses, losses of experts): microbatches train something else then, which is said.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from baechi.errors import BaechiError
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.joining import loss_in
from baechi.run.pipeline.batch.shares import ROWS, Rule, rules_for
from baechi.run.pipeline.batch.splitting import Parted, Split, parted, some_rows
from baechi.torchlib.modules.as_found import left_as_found
from baechi.torchlib.tensors.pytree import tensors_in

logger = logging.getLogger(__name__)

_ROWS, _FEWEST_ROWS = 8, 2
_TOLERANCE, _ROUGHLY = 2e-4, 2e-2
"""How far a loss may be from that of a few rows: of 32 bits or more (models cast inside), and of less."""

_ROUNDING = 32
"""A rule is as good as the best one if it is behind by so many units in the last place."""

_ALIKE = 1e-9

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
        self._split, self._tells = split, tells

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
        return self.rules[0].weigh(parts)

    def _disagree(self, parts: Parted) -> bool:
        found = [[float(share) for share in rule.weigh(parts)] for rule in self.rules]
        return any(
            abs(one - first) > _ALIKE
            for shares in found[1:]
            for one, first in zip(shares, found[0], strict=True)
        )

    def _ask(self, model: nn.Module, inputs: Inputs, call: CallWhole, fit: int) -> None:
        """Leave only the rules that give the loss of a few rows; as many as a microbatch has find room."""
        rows = some_rows(model, inputs, min(_ROWS, max(_FEWEST_ROWS, fit)), self._split)
        parts = parted(model, rows, 2, self._split) if rows is not None else None
        if rows is None or parts is None:
            self.rules = self.rules[-2:-1]  # one row says nothing: by rows
            return
        try:
            result, *results = [_looked(model, call, inputs) for inputs in (rows, *parts.parts)]
        except BaechiError:
            raise
        except Exception as error:  # the model's code may raise anything on fewer rows than it is made for
            logger.log(
                logging.WARNING if self._tells else logging.DEBUG,
                "what the losses of microbatches count is not known, since the model fails on a few rows: by "
                "rows, unless loss_weights= says otherwise. (%s: %s)",
                type(error).__name__,
                error,
            )
            self.rules, self.couples = [ROWS], True
            return
        whole, each = loss_in(result), [loss_in(one) for one in results]
        if whole is None or any(one is None for one in each):
            self.rules, self.couples = [ROWS], not _same_rows(result, results, parts.rows)
            return
        expected = float(whole)
        given = [_sum(rule.weigh(parts), each) for rule in self.rules]
        errors = [abs(one - expected) for one in given]
        scale = max(1.0, abs(expected))
        if min(errors) <= _tolerance(whole) * scale:
            at_most = min(errors) + _ROUNDING * _step(whole) * scale
            self.rules = [r for r, error in zip(self.rules, errors, strict=True) if error <= at_most]
            return
        self.rules, self.couples = [ROWS], True
        nearest = min(given, key=lambda one: abs(one - expected))
        logger.log(
            logging.WARNING if self._tells else logging.DEBUG,
            "the loss of %d rows is %.6g, and %.6g from two microbatches of them: it couples the rows of the "
            "batch, and microbatches train another objective. Use microbatches=1, or say how the parts count "
            "with loss_weights=",
            sum(parts.rows),
            expected,
            nearest,
        )


def _looked(model: nn.Module, call: CallWhole, inputs: Inputs) -> Any:
    """What a call gives in evaluation, without gradients; nothing of the model changes."""
    with torch.no_grad(), left_as_found(model, contents="none"):
        for module in model.modules():
            module.training = False
        return call(inputs)


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
    return sum([float(share) * float(loss) for share, loss in zip(shares, losses, strict=True)])


def _tolerance(loss: torch.Tensor) -> float:
    return _TOLERANCE if loss.dtype in (torch.float32, torch.float64) else _ROUGHLY


def _step(loss: torch.Tensor) -> float:
    """A unit in the last place of a loss near 1."""
    return max(torch.finfo(loss.dtype).eps, torch.finfo(torch.float32).eps)
