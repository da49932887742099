"""The model's own code, walked by one microbatch in its lane, or by the whole batch in a plain step."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from baechi.errors import BatchCoupled
from baechi.records.inputs import Inputs
from baechi.run.binding import binding_of
from baechi.run.pipeline.batch.caller_objects import Handed
from baechi.run.pipeline.batch.graph_inputs import Beginning
from baechi.run.pipeline.batch.judge import GIVES, RUNS, Case, Found, Judge, Verdict
from baechi.run.pipeline.batch.look import Looker, Setting, Way
from baechi.run.pipeline.batch.partition import Parted, Split, named_inputs, parted, rows_of
from baechi.run.pipeline.batch.shares import ROWS
from baechi.run.pipeline.lanes.lane_glue import LaneGlue
from baechi.run.pipeline.lanes.lane_step import LaneStep
from baechi.run.pipeline.microbatches import Loss, Microbatches
from baechi.run.plain_step import open_step
from baechi.run.runtime import Runtime
from baechi.torchlib.fakes.valueless import is_valueless
from baechi.torchlib.modules.inside import tensors_inside
from baechi.torchlib.modules.intercept import original_forward
from baechi.torchlib.tensors.pytree import map_tensors, tensors_in

TARGET = "target"
"""The keyword argument that a `loss=` function gets."""

_FEW = 8
"""So many rows are asked about before a line on what microbatches would gain."""


def walk(
    model: nn.Module, runtime: Runtime, loss: Loss | None, parts: Parted, step: LaneStep, inputs: Inputs
) -> Any:
    """Walk one microbatch through the model's code, in its lane."""
    handed = None if parts.is_plain else Handed(named_inputs(model, inputs))
    args, kwargs = inputs.args, dict(inputs.kwargs)
    if parts.leaves:
        args, kwargs = map_tensors(Beginning(), (args, kwargs))
    glue, first = LaneGlue(step), next(tensors_in(args, kwargs), None)
    step.home = None if first is None else runtime.backend.place_of(first)
    try:
        with runtime.opened(glue):
            forward = original_forward(model)
            result = forward(*args, **kwargs) if loss is None else with_loss(forward, loss, *args, **kwargs)
            if runtime.leaves_sharded:
                result = glue.joined(result)
    finally:
        step.leave()
    if handed is not None:
        handed.check()
    return result


def verdict_of(
    model: nn.Module, runtime: Runtime, microbatches: Microbatches, inputs: Inputs, parts: Parted
) -> Verdict:
    """What the losses of the microbatches count, and how their outputs are joined."""
    rule = ROWS if microbatches.told is None else microbatches.told.rule() or ROWS
    look = runtime.look_in_ranks
    if look is not None:  # it was judged before the weights went to their ranks
        unused = Looker(model, partial(_whole, model, runtime, microbatches.loss), None)
        case = Case(unused, inputs, parts, microbatches.split)
        if microbatches.judge.is_in_doubt(case):
            look(model, runtime, microbatches, case)
        return microbatches.judge.known(case)
    if not _has_values(model, inputs):
        return Verdict(Found(), {}, partial(list, rule.weigh(parts)), parts.rows)
    looker = Looker(model, partial(_whole, model, runtime, microbatches.loss), runtime.backend)
    case = Case(looker, inputs, parts, microbatches.split)
    return microbatches.judge.verdict(case, may_look=microbatches.may_look)


def judge_before(model: nn.Module, microbatches: Microbatches, inputs: Inputs) -> Verdict | None:
    """Judge a batch while the model is not distributed yet; None if its weights have no values."""
    if not _has_values(model, inputs):
        return None
    looker = Looker(
        model, lambda given: with_loss(model, microbatches.loss, *given.args, **given.kwargs), None
    )
    rows = rows_of(model, inputs, microbatches.split)
    number = microbatches.pipeline_for(model, rows).microbatches
    parts = parted(model, inputs, number, microbatches.split)
    return microbatches.judge.verdict(Case(looker, inputs, parts, microbatches.split))


def couples_rows(model: nn.Module, inputs: Inputs) -> str:
    """Whether the rows of a batch are coupled, so that parts of it train something else."""
    binding = binding_of(model)
    split = None if binding is None else binding.runtime.microbatches
    if binding is None or split is None or split.accepts:
        return ""
    parts = parted(model, inputs, split.pipeline.microbatches, split.split)
    try:
        verdict_of(model, binding.runtime, split.anew(), inputs, parts)
    except BatchCoupled as error:
        return str(error)
    return ""


def keeps_rows_apart(model: nn.Module, inputs: Inputs) -> bool:
    """Whether a few rows of a batch, in two parts, are known to give what they give together."""
    rows = rows_of(model, inputs, {}) or 0
    if rows < 2 or not _has_values(model, inputs):
        return False
    looker = Looker(model, lambda given: model(*given.args, **given.kwargs), None)
    setting = Setting(Way.EVALUATION, precise=False, perturbed=0, casts=True, noted=False)
    judge = Judge(tells=False, settings=[setting], advises=False)
    few = min(_FEW, rows)
    try:
        case = Case(looker, inputs, parted(model, inputs, 1, {}), {}).of_rows([few - few // 2, few // 2])
        judge.verdict(case)
    except BatchCoupled:
        return False
    return judge.judgements > 0


def split_that_helps(model: nn.Module, loss: Loss | None, inputs: Inputs, parts: Parted, split: Split) -> str:
    """How inputs are to be split, where a model that is not distributed yet fails on a part of a batch."""
    if not _has_values(model, inputs):
        return ""
    looker = Looker(model, lambda given: with_loss(model, loss, *given.args, **given.kwargs), None)
    case, judge = Case(looker, inputs, parts, split), Judge(tells=False)
    setting = Setting(Way.STILL, precise=False, perturbed=1)
    cure, helps = judge.cure(case, setting) if case.runs_whole(setting) else ("", False)
    return cure and f"{cure} {GIVES if helps else RUNS}"


def _has_values(model: nn.Module, inputs: Inputs) -> bool:
    for tensor in (*tensors_inside(model), *tensors_in(inputs.args, inputs.kwargs)):
        if tensor.is_meta or is_valueless(tensor):
            return False
    return True


def _whole(model: nn.Module, runtime: Runtime, loss: Loss | None, inputs: Inputs) -> Any:
    """Call the model with a batch as it is, in a plain step."""
    with open_step(model, runtime):
        return with_loss(original_forward(model), loss, *inputs.args, **inputs.kwargs)


def with_loss(forward: Callable[..., Any], loss: Loss | None, /, *args: Any, **kwargs: Any) -> Any:
    """Run a model's code, and compute the loss of what it returns, if that is asked for."""
    target = kwargs.pop(TARGET, None) if loss is not None else None
    result = forward(*args, **kwargs)
    return result if loss is None or target is None else loss(result, target)
