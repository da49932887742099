"""How far numbers may be apart that are the same but for rounding."""

import logging
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.few_rows import FewRows
from baechi.run.pipeline.batch.joining import objective_in
from baechi.run.pipeline.batch.looking import CallWhole, Losses, looked
from baechi.run.pipeline.batch.signalled import says_nothing_of_rows
from baechi.run.state.caller_state import CallerState
from baechi.torchlib.tensors.pytree import tensors_in

logger = logging.getLogger(__name__)

_FEW_UNITS, _UNITS = 8, 32
"""Sums in another order differ by so many units in the last place; a rule may be behind the best by more."""

_CAST_INSIDE, _ROUGHLY = 2e-4, 2e-2
"""How far losses may be apart, of 32 bits or more where models compute with fewer, and of fewer."""

_TIMES = 16
"""How often as large as the rounding that was measured another one may be."""


def is_rounding(error: float, model: nn.Module, call: CallWhole, few: FewRows, found: Losses) -> bool:
    """Whether a loss is off by no more than sums in another order are.

    It may be by a few units in the last place. Where it is off by more, and the model may compute with fewer
    bits than its loss has, that is measured: a half of the rows, each of them twice, has the same mean.

    Args:
        error: by how much it is off.
        model: the model.
        call: calls it.
        few: the rows that it was asked about.
        found: the losses that it gave for them.
    """
    scale = max(1.0, abs(float(found.together)))
    most = allowed(found.together) * scale
    if error <= min(_FEW_UNITS * _unit(found.together) * scale, most):
        return True
    if not error <= most:
        return False
    if _computes_with_fewer_bits(model, few.together):
        return True
    return error <= _TIMES * _measured(model, call, few, found)


def as_good(whole: torch.Tensor) -> float:
    """By how much a loss may be further off than another, and be as near.

    Args:
        whole: the loss that both should be.
    """
    return _UNITS * _unit(whole) * max(1.0, abs(float(whole)))


def allowed(values: torch.Tensor) -> float:
    """How far values near 1 may be apart at most, for their dtype.

    Args:
        values: a tensor.
    """
    return _CAST_INSIDE if values.dtype in (torch.float32, torch.float64) else _ROUGHLY


def same_rows(whole: Any, parts: Sequence[Any], rows: Sequence[int]) -> bool:
    """Whether outputs with a row for each row of the batch have the same rows in its parts.

    Args:
        whole: what a model returned for the rows together.
        parts: what it returned for each part.
        rows: how many rows each part has.
    """
    begun = accumulate(rows, initial=0)
    for part, first, count in zip(parts, begun, rows, strict=False):
        for one, other in zip(tensors_in(whole), tensors_in(part), strict=False):
            if one.is_floating_point() and one.dim() and len(one) == sum(rows):
                mine = one.narrow(0, first, count)
                if mine.numel() == other.numel():  # a model may leave out the dimension of a single row
                    mine, other = mine.cpu(), other.reshape(mine.shape).cpu()  # they may lie apart
                    near = allowed(one) * max(1.0, float(one.abs().max()))
                    if not torch.allclose(mine, other, rtol=0, atol=near):
                        return False
                elif other.dim() and len(other) == count:
                    return False
    return True


def _measured(model: nn.Module, call: CallWhole, few: FewRows, found: Losses) -> float:
    """By how much the loss of a half changes if each of its rows is there twice; infinite if it fails."""
    try:
        (result,) = looked(model, call, few.twice, found.way)
    except Exception as error:  # the model's code may raise anything on rows that are no batch of its own
        if says_nothing_of_rows(error):
            raise
        logger.debug("rounding is not known: %s: %s", type(error).__name__, error)
        return inf
    loss, once = objective_in(result), float(found.apart[-1])
    return inf if loss is None else min(abs(float(loss) - once), abs(float(loss) - 2 * once))


def _computes_with_fewer_bits(model: nn.Module, inputs: Inputs) -> bool:
    """Whether tensors, or autocast, have fewer than 32 bits."""
    floats = (
        t for t in (*model.parameters(), *tensors_in(inputs.args, inputs.kwargs)) if t.is_floating_point()
    )
    return CallerState.now().autocasts or any(torch.finfo(one.dtype).bits < 32 for one in floats)


def _unit(loss: torch.Tensor) -> float:
    """A unit in the last place of a loss near 1; of 32 bits at most, since models cast inside."""
    return max(torch.finfo(loss.dtype).eps, torch.finfo(torch.float32).eps)
