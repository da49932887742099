"""The model's own code, walked by one microbatch in its lane, or by a few rows in a plain step."""

import logging
from functools import partial
from typing import Any

import torch
from torch import nn

from baechi.records.inputs import Inputs
from baechi.run.binding import binding_of
from baechi.run.pipeline.batch.beginning import Beginning
from baechi.run.pipeline.batch.dimensions import Dimensions, dimensions_of
from baechi.run.pipeline.batch.evidence import Evidence
from baechi.run.pipeline.batch.looking import Way, looked
from baechi.run.pipeline.batch.signalled import is_signalled, says_nothing_of_rows
from baechi.run.pipeline.batch.splitting import Parted, parted
from baechi.run.pipeline.lanes.lane_glue import LaneGlue
from baechi.run.pipeline.lanes.lane_step import LaneStep
from baechi.run.pipeline.microbatches import Loss, Microbatches
from baechi.run.runtime import Runtime
from baechi.torchlib.fakes.valueless import is_valueless
from baechi.torchlib.modules.intercept import original_forward
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

logger = logging.getLogger(__name__)

TARGET = "target"
"""The keyword argument that a `loss=` function gets."""


def walk(
    model: nn.Module,
    runtime: Runtime,
    loss: Loss | None,
    step: LaneStep,
    inputs: Inputs,
) -> Any:
    """Walk one microbatch through the model's code, in its lane.

    Args:
        model: the model.
        runtime: its runtime.
        loss: computes the loss; None if the model returns it.
        step: the microbatch's step.
        inputs: its inputs.

    Returns:
        What the model returns, or the loss.
    """
    args, kwargs = map_tensors(Beginning(), (inputs.args, dict(inputs.kwargs)))
    target = kwargs.pop(TARGET, None) if loss is not None else None
    glue = LaneGlue(step)
    try:
        with runtime.opened(glue):
            result = original_forward(model)(*args, **kwargs)
            if loss is not None and target is not None:
                result = loss(result, target)
            if runtime.leaves_parts:
                result = glue.joined(result)
    finally:
        step.leave()
    return result


def shares_of(
    model: nn.Module, runtime: Runtime, microbatches: Microbatches, inputs: Inputs, parts: Parted
) -> list[Any]:
    """What the losses of the microbatches count.

    Args:
        model: the model.
        runtime: its runtime.
        microbatches: how its step is split.
        inputs: the batch.
        parts: the same in parts.
    """
    if microbatches.weigh is not None:
        return microbatches.weigh(parts)
    call = partial(_whole, model, runtime, microbatches.loss)
    return microbatches.evidence.shares(model, parts, inputs, call)


def known_dimensions(
    model: nn.Module, runtime: Runtime, microbatches: Microbatches, inputs: Inputs
) -> Dimensions:
    """Along which dimension the outputs of microbatches are joined.

    Args:
        model: the model.
        runtime: its runtime.
        microbatches: how its step is split.
        inputs: the batch; the first of a kind (its names, training or not) is looked at.

    Returns:
        By name. Nothing where nothing can be asked: without values, or where the model fails on a few rows.
    """
    kind = model.training, torch.is_grad_enabled(), len(inputs.args), tuple(sorted(inputs.kwargs))
    if kind not in microbatches.dimensions:
        call = partial(_whole, model, runtime, microbatches.loss)
        found: Dimensions = {}
        if _has_values(model, inputs):
            try:
                way = Way.TRAINING if model.training else Way.EVALUATION
                found = dimensions_of(
                    model,
                    inputs,
                    microbatches.pipeline.split,
                    lambda rows: looked(model, call, rows, way)[0],
                )
            except Exception as error:  # the model's code may raise anything on few rows
                if says_nothing_of_rows(error):
                    raise
                logger.debug("how outputs are joined is not known: the model fails on few rows: %s", error)
        microbatches.dimensions[kind] = found
    return microbatches.dimensions[kind]


def couples_rows(model: nn.Module, inputs: Inputs) -> bool:
    """Whether the rows of a batch are coupled, so that parts of it train something else.

    Args:
        model: a distributed model whose step is split; a few rows of the batch are run.
        inputs: a batch.

    Returns:
        False also where nothing can be asked: the user says what parts count, or weights are not there yet.
    """
    binding = binding_of(model)
    split: Microbatches | None = None if binding is None else binding.runtime.microbatches
    if binding is None or split is None or split.weigh is not None or not _has_values(model, inputs):
        return False
    parts = parted(model, inputs, split.pipeline.microbatches, split.pipeline.split)
    shares_of(model, binding.runtime, split, inputs, parts)
    return split.evidence.couples


def keeps_rows_apart(model: nn.Module, inputs: Inputs) -> bool:
    """Whether a few rows of a batch, in two parts, are known to give what they give together.

    Args:
        model: any model; the rows are run without gradients, in evaluation if there is a loss.
        inputs: a batch.

    Returns:
        False also where nothing can be asked: weights are not there yet, or the model fails on a few rows.
    """
    if not _has_values(model, inputs):
        return False
    evidence = Evidence({}, tells=False, trains=False)
    try:
        evidence.shares(
            model, parted(model, inputs, 2, {}), inputs, lambda rows: model(*rows.args, **rows.kwargs)
        )
    except Exception as error:  # the model's code may raise anything on another batch than its own
        if is_signalled(error):
            raise
        logger.debug("nothing is known of parts of a batch: the model fails on a few rows: %s", error)
        return False
    return not evidence.couples


def _has_values(model: nn.Module, inputs: Inputs) -> bool:
    given = [*model.parameters(), *model.buffers(), *tensors_in(inputs.args, inputs.kwargs)]
    return not any(tensor.is_meta or is_valueless(tensor) for tensor in given)


def _whole(model: nn.Module, runtime: Runtime, loss: Loss | None, inputs: Inputs) -> Any:
    """Call the model with a batch as it is, in a plain step."""
    args, kwargs = inputs.args, dict(inputs.kwargs)
    target = kwargs.pop(TARGET, None) if loss is not None else None
    with runtime.step(model):
        result = original_forward(model)(*args, **kwargs)
        return result if loss is None or target is None else loss(result, target)
