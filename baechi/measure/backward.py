"""Seconds of backward by whose it is: hooks before and after each autograd node read the clock.

So what the engine itself takes is nobody's, and short layers are not drowned in it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.backend.autograd_nodes import nodes_from


def clocked_backward(
    outputs: Sequence[torch.Tensor], owner_of: Callable[[int], str | None]
) -> dict[str, float]:
    """Run backward, with gradients of ones.

    Args:
        outputs: where it begins.
        owner_of: whose the node of a sequence number is; None for nobody's.

    Returns:
        Seconds by owner.
    """
    seconds: dict[str, float] = {}
    for node in nodes_from([output.grad_fn for output in outputs]):
        owner = owner_of(node._sequence_nr())
        if owner is not None:
            _clock_node(node, owner, seconds)
    torch.autograd.backward(list(outputs), [torch.ones_like(output) for output in outputs])
    return seconds


def _clock_node(node: Any, owner: str, seconds: dict[str, float]) -> None:
    started: list[float] = []

    def before(grads: Any) -> None:
        started.append(time.perf_counter())

    def after(grads_in: Any, grads_out: Any) -> None:
        taken_s = time.perf_counter() - started.pop()
        seconds[owner] = seconds.get(owner, 0.0) + taken_s

    node.register_prehook(before)
    node.register_hook(after)
