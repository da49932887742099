"""Seconds of backward by owner: hooks before and after each autograd node read the clock.

So the engine's own time is charged to no layer, where it would exceed that of short ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from baechi.backend.real.stopwatch import Stopwatch
from baechi.torchlib.autograd_nodes import nodes_from
from baechi.torchlib.private.autograd import sequence_number

_Taken = list[tuple[str, Any, Any]]


def clocked_backward(
    outputs: Sequence[torch.Tensor], owner_of: Callable[[int], str | None], watch: Stopwatch
) -> dict[str, float]:
    """Run backward, with gradients of ones.

    Args:
        outputs: where it begins.
        owner_of: the owner of the node with a sequence number; None if it has none.
        watch: of the device that runs it.

    Returns:
        Seconds by owner.
    """
    taken: _Taken = []
    for node in nodes_from([output.grad_fn for output in outputs]):
        owner = owner_of(sequence_number(node))
        if owner is not None:
            _clock_node(node, owner, watch, taken)
    torch.autograd.backward(list(outputs), [torch.ones_like(output) for output in outputs])
    watch.wait()
    seconds: dict[str, float] = {}
    for owner, first, last in taken:
        seconds[owner] = seconds.get(owner, 0.0) + watch.seconds(first, last)
    return seconds


def _clock_node(node: Any, owner: str, watch: Stopwatch, taken: _Taken) -> None:
    started: list[Any] = []

    def before(grads: Any) -> None:
        started.append(watch.now())

    def after(grads_in: Any, grads_out: Any) -> None:
        taken.append((owner, started.pop(), watch.now()))

    node.register_prehook(before)
    node.register_hook(after)
