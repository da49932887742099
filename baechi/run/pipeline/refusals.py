"""Calls whose steps cannot be split, though the model's can."""

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

from baechi.errors import UNSPLIT_CURE, UnsplittableCall
from baechi.records.inputs import Inputs
from baechi.run.pipeline.batch.caller_objects import may_be_written
from baechi.run.pipeline.batch.partition import Unsplittable, handed_objects, rows_of
from baechi.run.pipeline.microbatches import Microbatches
from baechi.run.state.caller_state import CallerState
from baechi.torchlib.modules.inside import weights_in
from baechi.torchlib.private.modules import weights_are_cached
from baechi.torchlib.private.transforms import current_transform, forward_ad_level
from baechi.torchlib.tensors.pytree import tensors_in


def refuse_call(model: nn.Module, inputs: Inputs) -> None:
    """Raise if a call would give wrong gradients, or none, in microbatches."""
    if current_transform() is not None:
        _refuse("inside of a transform of torch.func, which does not see the threads of microbatches")
    duals = (*model.parameters(), *tensors_in(inputs.args, inputs.kwargs)) if forward_ad_level() >= 0 else ()
    for one in duals:
        if forward_ad.unpack_dual(one).tangent is not None:
            _refuse("with dual numbers, whose tangents would be lost")
    if not torch.is_grad_enabled():
        return
    if weights_are_cached() and any(map(parametrize.is_parametrized, model.modules())):
        _refuse("inside of parametrize.cached(), whose weights have one history, and each microbatch its own")
    for weight in weights_in(model):
        if weight.grad_fn is not None:
            name = next(name for name, one in model.named_parameters() if one is weight)
            _refuse(
                f"with weights that are computed ({name}), whose history all microbatches would go back "
                "through, each in its turn"
            )
    if not model.training:
        return
    state = CallerState.now()
    for is_on, dtype in zip(state.autocast, state.cast_to, strict=True):
        if is_on and dtype is torch.float16:  # a `GradScaler` scales the loss that a call returns
            raise UnsplittableCall(
                "under autocast to float16 a GradScaler has to scale the loss before backward, and a step in "
                f"microbatches runs backward inside the call: use bfloat16, or {UNSPLIT_CURE}"
            )


def _refuse(why: str) -> None:
    raise UnsplittableCall(f"the model is called {why}: {UNSPLIT_CURE}")


def refuse_unsplittable(model: nn.Module, inputs: Inputs, microbatches: Microbatches) -> None:
    """Raise if a call that needs no microbatches cannot be split."""
    rows, number = rows_of(model, inputs, microbatches.split), microbatches.pipeline.microbatches
    if rows is not None and rows < number:
        raise Unsplittable(f"the batch has {rows} rows, and there are {number} microbatches")
    for name, item in handed_objects(model, inputs, rows or 0, microbatches.split):
        if may_be_written(item):
            raise Unsplittable(f"{name} is a {type(item).__name__}, which its code may write")
