"""What a model gives for a few rows of a batch, together and in parts; looking changes nothing of it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.joining import objective_in
from baechi.run.pipeline.batch.signalled import says_nothing_of_rows
from baechi.torchlib.fakes.valueless import is_valueless
from baechi.torchlib.modules.as_found import Keeper, left_as_found
from baechi.torchlib.private.modes import without_dispatch_modes
from baechi.torchlib.private.transforms import is_wrapped
from baechi.torchlib.tensors.pytree import map_tensors

logger = logging.getLogger(__name__)

CallWhole = Callable[[Inputs], Any]
"""Calls the model with a batch as it is; the result has the loss."""

_OTHER_IN_TRAINING = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.RReLU, nn.RNNBase, nn.MultiheadAttention),
)
"""Modules of torch that draw random numbers in training only, or normalize over the rows of a batch."""


class Way(Enum):
    """How a model is set for a look.

    Attributes:
        EVALUATION: all of it in evaluation.
        STILL: its own code as it is, and torch's modules that draw, or couple rows, in evaluation.
        TRAINING: as it is.
    """

    EVALUATION = "evaluation"
    STILL = "still"
    TRAINING = "training"


@dataclass(frozen=True)
class Losses:
    """The losses that a model gave for a few rows.

    Args:
        way: how it was set.
        together: that of the rows together.
        apart: that of each part of them.
    """

    way: Way
    together: torch.Tensor
    apart: list[torch.Tensor]


@dataclass(frozen=True)
class Seen:
    """What a model gave for a few rows.

    Args:
        way: how it was set.
        together: what it returned for the rows together.
        apart: what it returned for each part of them.
    """

    way: Way
    together: Any
    apart: list[Any]

    def losses(self) -> Losses | None:
        """Its losses; None if it returned one without."""
        whole, each = objective_in(self.together), [objective_in(one) for one in self.apart]
        found = [one for one in each if one is not None]
        return None if whole is None or len(found) < len(each) else Losses(self.way, whole, found)


def seen(
    model: nn.Module,
    call: CallWhole,
    rows: Inputs,
    parts: Sequence[Inputs],
    *,
    trains: bool,
    known: bool = False,
) -> Seen:
    """What a model gives for a few rows, as it trains if that can be told.

    In training, losses are those of training if the model gives the same one twice in a row: its own code
    draws nothing then. Else they are those of evaluation, and if there are none, those of training as it is.

    Args:
        model: the model.
        call: calls it.
        rows: the rows together.
        parts: the same in parts.
        trains: whether it is looked at in training though it may have a loss in evaluation.
        known: whether it is known to draw nothing then, as other rows of the batch were looked at.

    Returns:
        What it returned, without gradients.

    Raises:
        Exception: whatever the model's code raises in evaluation.
    """
    if trains and model.training:
        found = _in_training(model, call, rows, parts, Way.STILL, 1 if known else 2)
        if found is not None:
            return found
    (whole,) = looked(model, call, rows, Way.EVALUATION)
    each = [looked(model, call, one, Way.EVALUATION)[0] for one in parts]
    in_evaluation = Seen(Way.EVALUATION, whole, each)
    if in_evaluation.losses() is not None or not model.training:
        return in_evaluation
    return _in_training(model, call, rows, parts, Way.TRAINING) or in_evaluation


def _in_training(
    model: nn.Module, call: CallWhole, rows: Inputs, parts: Sequence[Inputs], way: Way, times: int = 1
) -> Seen | None:
    """What it gives in training, if there are losses; None also if it fails, or draws though it is still."""
    try:
        whole, *again = looked(model, call, rows, way, times)
        one, others = objective_in(whole), [objective_in(result) for result in again]
        if one is None or any(other is None or float(other) != float(one) for other in others):
            return None
        each = [looked(model, call, part, way)[0] for part in parts]
    except Exception as error:  # the model's code may raise anything on few rows; evaluation may still tell
        if says_nothing_of_rows(error):
            raise
        logger.debug("a few rows fail in training (%s): %s: %s", way.value, type(error).__name__, error)
        return None
    found = Seen(way, whole, each)
    return found if found.losses() is not None else None


def looked(model: nn.Module, call: CallWhole, inputs: Inputs, way: Way, times: int = 1) -> list[Any]:
    """What calls give without gradients, with copies of the inputs; nothing of the model changes.

    Args:
        model: the model.
        call: calls it.
        inputs: a few rows.
        way: how the model is set.
        times: how many calls there are, each of which finds what the one before left, random states too.
    """
    results = []
    with torch.no_grad(), left_as_found(model, contents="none") as keeper, _contents_kept(keeper):
        for module in model.modules() if way is not Way.TRAINING else ():
            if way is Way.EVALUATION or isinstance(module, _OTHER_IN_TRAINING):
                module.training = False
        for _ in range(times):
            args, kwargs = map_tensors(torch.clone, (inputs.args, inputs.kwargs))
            results.append(call(Inputs(*args, **kwargs)))
    return results


@contextmanager
def _contents_kept(keeper: Keeper) -> Iterator[None]:
    """Put back what the model's code writes in buffers, and in tensors of attributes: counts, say, in
    evaluation too. This takes no time of emulated devices."""
    with without_dispatch_modes():
        data = [
            tensor.data
            for tensor in keeper.seen.values()
            if isinstance(tensor, torch.Tensor)
            and not isinstance(tensor, nn.Parameter)
            and tensor.layout == torch.strided
            and not is_wrapped(tensor)
        ]
        before = [(one, one.clone()) for one in data if not (one.is_meta or is_valueless(one))]
    try:
        yield
    finally:
        with without_dispatch_modes():
            for one, content in before:
                if not torch.equal(one, content):
                    one.copy_(content)
