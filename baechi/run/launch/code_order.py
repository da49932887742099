"""Where nothing may wait: regions that run in the code's order, and why."""

from collections.abc import Iterable

import torch

from baechi.run.guards.entrances import inside_a_function
from baechi.run.state.caller_state import CallerState, is_transformed, saves_through_hooks
from baechi.torchlib.private.autograd import current_graph_task_id
from baechi.torchlib.private.modes import dispatch_mode_count, function_mode_count


def modes() -> tuple[int, int]:
    """How many function modes and dispatch modes are on."""
    return function_mode_count(), dispatch_mode_count()


def must_keep_code_order(modes_before: tuple[int, int]) -> str:
    """Why nothing may wait here, if so.

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
    """Why a function may not wait that is given weights, if so.

    Args:
        given: its arguments.
    """
    if CallerState.now().autocasts and any(isinstance(tensor, torch.nn.Parameter) for tensor in given):
        return "its weights are cast once for several calls (autocast)"
    return ""
