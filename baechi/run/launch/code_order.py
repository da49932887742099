"""Regions of code that must run in the code's order, so that no call in them may wait, and why."""

from collections.abc import Iterable

import torch

from baechi.run.guards.entrances import inside_a_function
from baechi.run.state.caller_state import CallerState, is_transformed, saves_through_hooks
from baechi.torchlib.private.autograd import current_graph_task_id
from baechi.torchlib.private.modes import dispatch_mode_count, function_mode_count


def modes() -> tuple[int, int]:
    """Count the function modes and dispatch modes that are on."""
    return function_mode_count(), dispatch_mode_count()


def must_keep_code_order(modes_before: tuple[int, int]) -> str:
    """Say why no call may wait here; empty if calls may.

    Args:
        modes_before: the modes that were on when the step began.
    """
    if current_graph_task_id() != -1:
        return "runs in backward"
    if inside_a_function():
        return "runs inside an autograd.Function"
    if is_transformed():
        return "runs inside a transform of torch.func"
    if saves_through_hooks():
        return "hooks see what autograd saves, in order (activation checkpointing)"
    if modes() != modes_before:
        return "a mode is on that was not on when the step began"
    return ""


def casts_weights(given: Iterable[torch.Tensor]) -> str:
    """Say why a function may not wait because of its weight arguments; empty if it may.

    Args:
        given: the tensors among its arguments.
    """
    if CallerState.now().autocasts and any(isinstance(tensor, torch.nn.Parameter) for tensor in given):
        return "its weights are cast once for several calls (autocast)"
    return ""
