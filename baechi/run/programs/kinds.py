"""Kinds of calls: what calls have in common that are captured, or not, together; and what sees a call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from baechi.backend import unwatched
from baechi.records.inputs import Inputs
from baechi.torchlib.modules.inside import modules_in
from baechi.torchlib.private.modes import dispatch_mode_count, function_mode_count
from baechi.torchlib.private.modules import (
    EVERY_FORWARD_HOOKS,
    EVERY_FORWARD_PRE_HOOKS,
    backward_hooks,
    backward_pre_hooks,
    forward_hooks,
    forward_pre_hooks,
)
from baechi.torchlib.private.transforms import current_transform, forward_ad_level


class Kind(NamedTuple):
    """What calls have in common of which one was not captured.

    Args:
        training: whether the model is in training.
        gradients: whether there are gradients.
        given: the types of what the calls are given.
        hooks: the hooks that modules inside of the model run in forward.
    """

    training: bool
    gradients: bool
    given: tuple[Any, ...]
    hooks: tuple[Any, ...]


def kind_of_call(model: nn.Module, inputs: Inputs, modules: Sequence[nn.Module] | None = None) -> Kind:
    """The kind of a call."""
    given = *map(type, inputs.args), *[(name, type(value)) for name, value in inputs.kwargs.items()]
    inside = modules_in(model) if modules is None else modules
    hooks = [
        hook
        for number, module in enumerate(inside)
        if module is not model
        for table in (forward_pre_hooks(module), forward_hooks(module))
        for hook in (number, *table.values())
        if table
    ]
    return Kind(model.training, torch.is_grad_enabled(), given, tuple(hooks))


def who_sees(modules: Sequence[nn.Module]) -> str:
    """What sees, or changes, each operation of a call, so that its code has to run; empty if nothing does."""
    if EVERY_FORWARD_HOOKS or EVERY_FORWARD_PRE_HOOKS or any(map(_hooks_backward, modules)):
        return "with hooks on modules inside of it, which see the values of each step"
    if current_transform() is not None or forward_ad_level() >= 0:
        return "inside of a transform of torch.func, or with dual numbers"
    if function_mode_count():
        return "under a torch function mode"
    with unwatched():
        return "under a dispatch mode" if dispatch_mode_count() else ""


def _hooks_backward(module: nn.Module) -> bool:
    return bool(backward_hooks(module) or backward_pre_hooks(module))
