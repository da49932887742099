"""Seconds of backward by owner: hooks before and after each autograd node read the clock.

So the engine's own time is charged to no layer, where it would exceed that of short ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.measure.timed_call import Call, CallClock
from baechi.torchlib.autograd_nodes import node_of, nodes_from
from baechi.torchlib.private.autograd import sequence_number

Calls = dict[str, list[Call]]
"""The timed calls by owner."""


def clocked_backward(
    outputs: Sequence[torch.Tensor], owner_of: Callable[[int], str | None], clock: CallClock
) -> Calls:
    """Run backward, with gradients of ones."""
    calls: Calls = {}
    nodes: dict[str, int] = {}
    for node in nodes_from(map(node_of, outputs)):
        owner = owner_of(sequence_number(node))
        if owner is not None:
            nodes[owner] = nodes.get(owner, 0) + 1
            _clock_node(node, f"{owner}, node {nodes[owner]}", clock, calls.setdefault(owner, []))
    torch.autograd.backward(list(outputs), [torch.ones_like(output) for output in outputs])
    clock.watch.wait()
    return calls


def _clock_node(node: Any, key: str, clock: CallClock, calls: list[Call]) -> None:
    started: list[Call] = []

    def before(grads: Any) -> None:
        started.append(clock.begin(key))

    def after(grads_in: Any, grads_out: Any) -> None:
        clock.end(started[-1])
        calls.append(started.pop())

    node.register_prehook(before)
    node.register_hook(after)
