"""Regions of code that run as they are written: no op in them runs elsewhere or later, and why."""

import threading

from baechi.run.state.caller_state import is_transformed, saves_through_hooks
from baechi.torchlib.private.autograd import current_graph_task_id
from baechi.torchlib.private.transforms import forward_ad_level


class _Thread(threading.local):
    depth = 0


function_code = _Thread()
"""`depth`: in how many calls of an `autograd.Function` this thread is."""


def why_as_written() -> str:
    """Why the code that runs now must run as it is written; empty if it need not."""
    if current_graph_task_id() != -1:
        return "runs in backward"
    if function_code.depth:
        return "runs inside an autograd.Function"
    if is_transformed():
        return "runs inside a transform of torch.func"
    if forward_ad_level() >= 0:
        return "runs inside a level of forward-mode differentiation"
    if saves_through_hooks():
        return "hooks see what autograd saves, in order (activation checkpointing)"
    return ""
