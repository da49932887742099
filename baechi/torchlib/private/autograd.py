"""Autograd's inside: which backward runs, its nodes and their numbers, the hooks on what it saves."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from baechi.torchlib.private.lookup import attribute, named

NO_GRAPH_TASK = -1
"""What `current_graph_task_id` says outside of backward."""

current_graph_task_id: Callable[[], int] = named(
    "torch._C._current_graph_task_id", "tell backward from forward, and one backward from another"
)
current_autograd_node: Callable[[], Any] = named(
    "torch._C._current_autograd_node", "know whose backward an operation belongs to"
)
call_after_backward: Callable[[Callable[[], None]], None] = named(
    "torch.autograd.Variable._execution_engine.queue_callback",
    "close the step that checkpointing opens in backward",
)

next_sequence_number: Callable[[], int] = named(
    "torch._C._autograd._get_sequence_nr", "know which autograd nodes a layer made"
)
sequence_number: Callable[[Any], int] = attribute(
    named("torch._C._FunctionBase", "know which layer made an autograd node"),
    "_sequence_nr",
    "know which layer made an autograd node",
    call=True,
)
unused_node: Callable[[], object] = named(
    "torch._C._functions.UndefinedGrad", "let other threads' nodes have numbers of this thread"
)
"""Makes an autograd node, which uses up this thread's next number."""

LEAF_NUMBER = 2**63
"""Nodes that add to a leaf's gradient (`AccumulateGrad`) have at least this number, all others less."""

top_saved_hooks: Callable[[bool], Any] = named(
    "torch._C._autograd._top_saved_tensors_default_hooks", "see whether hooks count what autograd saves"
)
pop_saved_hooks: Callable[[], None] = named(
    "torch._C._autograd._pop_saved_tensors_default_hooks", "run layers later than hooks expect it"
)
push_saved_hooks: Callable[[Any, Any], None] = named(
    "torch._C._autograd._push_saved_tensors_default_hooks", "run layers later than hooks expect it"
)

_replay = "have the same autograd nodes in a run as with fake tensors, where code writes a part of a tensor"
are_views_replayed: Callable[[], bool] = named("torch._C._is_view_replay_enabled", _replay, lambda: False)
replay_views: Callable[[bool], None] = named("torch._C._set_view_replay_enabled", _replay, lambda _: None)
views_replayed: Callable[[], AbstractContextManager[object]] = partial(
    named("torch.autograd.grad_mode._force_original_view_tracking", _replay, nullcontext), True
)
"""Within this context, a view whose tensor was written goes backward op by op, through each of its views.

Autograd does so for fake tensors. For others it makes one node of all views, whose backward fills, copies
and adds the whole tensor several times. The numbers are the same.
"""

backward_class: Callable[[Any], type] = attribute(
    torch.autograd.Function, "_backward_cls", "tell the nodes of an `autograd.Function` from others"
)


def set_sequence_number(node: Any, number: int) -> None:
    """Give an autograd node another number: backward runs the largest first.

    Without it, nodes that were made in other threads would run in another order.
    """
    node._set_sequence_nr(number)


def replace_backward(node: Any, backward: Callable[..., Any]) -> None:
    """Let a node of an `autograd.Function` run something else in backward.

    Torch asks the node for `apply` when it runs it. Without that, gradients that the function returns
    would stay where its own code left them.
    """
    node.apply = backward


CHECKPOINT_CHECKS: dict[str, Any] = named(
    "torch.utils.checkpoint._allowed_determinism_checks_to_fns",
    "compare the two runs of a checkpointed region on an emulated cluster",
    {},
)
