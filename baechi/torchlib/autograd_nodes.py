"""The autograd nodes that tensors were made by."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


def nodes_from(roots: Iterable[Any], wanted: Callable[[Any], bool] = lambda node: True) -> Iterator[Any]:
    """Autograd nodes, each once, from some of them downwards."""
    seen: set[Any] = set()
    waiting = [root for root in roots if root is not None]
    while waiting:
        node = waiting.pop()
        if node in seen or not wanted(node):
            continue
        seen.add(node)
        yield node
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)


def node_of(tensor: torch.Tensor) -> Any:
    """The autograd node that made a tensor."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None
