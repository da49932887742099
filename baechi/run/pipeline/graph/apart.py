"""A part's backward in two: first the gradients that other parts wait for, later those of weights.

    incoming ──▶ product ──▶ ... ──▶ product ──▶ cut     first: one call of the engine; products are asked
                    ┆ caught             ┆ caught        for the gradient of their input alone
                    ▼                    ▼
                  weights              weights           later: a call for each product

Which gradients a node computes follows from what the engine is asked for. A product of matrices or a
convolution computes one gradient or the other, so nothing is computed twice. All other nodes that have
weights compute all their gradients in one kernel: these weights belong to the first call. So do weights that
the part uses more than once: their gradients meet on the way.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from baechi.backend import AbstractBackend
from baechi.torchlib.private.autograd import LEAF_NUMBER, sequence_number

_PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Addbmm", "Mv", "Addmv", "Linear", "Convolution")
"""How the names of nodes begin that multiply what comes in once for each gradient that they return."""


class Later(NamedTuple):
    """What is left of a part's backward: the gradients of one product's weights.

    Args:
        node: the product.
        grads: what came in for its outputs.
        leaves: the nodes that add to its weights' gradients.
    """

    node: Any
    grads: tuple[torch.Tensor | None, ...]
    leaves: tuple[Any, ...]


def go_to_cuts(
    edges: Sequence[GradientEdge], grads: Sequence[torch.Tensor], handle: torch.Tensor
) -> list[Later]:
    """Run a part's backward as far as other parts wait for it."""
    goal = get_gradient_edge(handle).node
    roots = {edge.node for edge in edges}
    reaches = _reaching(roots, goal)
    # a root may be a weight that other parts read, or made of weights alone
    entries = {node: _leaves(node, reaches) for node, found in reaches.items() if found or node in roots}
    uses = Counter([leaf for leaves in entries.values() for leaf in leaves])
    apart = {
        node: leaves
        for node, leaves in entries.items()
        if leaves and reaches[node] and _is_product(node) and all(uses[leaf] == 1 for leaf in leaves)
    }
    late = {leaf for leaves in apart.values() for leaf in leaves}
    wanted = [GradientEdge(node, 0) for node in (goal, *[leaf for leaf in uses if leaf not in late])]
    caught: dict[Any, tuple[torch.Tensor | None, ...]] = {}

    def catching(node: Any) -> Any:
        def catch(incoming: tuple[torch.Tensor | None, ...]) -> None:
            caught[node] = incoming

        return node.register_prehook(catch)

    hooks = [catching(node) for node in apart]
    try:
        torch.autograd.backward(edges, grads, retain_graph=bool(apart), inputs=wanted)
    finally:
        for hook in hooks:
            hook.remove()
    return [Later(node, incoming, apart[node]) for node, incoming in caught.items()]


def go_to_weights(
    backend: AbstractBackend, place: str, left: list[Later], after: Callable[[list[torch.Tensor]], None]
) -> None:
    """Run what is left of a part's backward."""
    while left:
        node, grads, leaves = left.pop(0)
        known = [(GradientEdge(node, number), grad) for number, grad in enumerate(grads) if grad is not None]
        # what hooks of the product made of its gradient is in what was caught: it is not to be made again
        hook = node.register_prehook(lambda _, grads=grads: grads)
        backend.spend("weights", place)
        try:
            torch.autograd.backward(
                [edge for edge, _ in known],
                [grad for _, grad in known],
                inputs=[GradientEdge(leaf, 0) for leaf in leaves],
            )
        finally:
            hook.remove()
        after([grad for _, grad in known])


def _is_product(node: Any) -> bool:
    return bool(node.name().startswith(_PRODUCTS))


def _reaching(roots: Iterable[Any], goal: Any) -> dict[Any, bool]:
    """Every node with a way on that begins at some nodes, and whether one leads to a goal."""
    found: dict[Any, bool] = {}
    waiting = list(roots)
    while waiting:
        node = waiting[-1]
        after = [] if node is goal else [other for other, _ in node.next_functions if other is not None]
        missing = [other for other in after if other not in found]
        if node in found or not missing:
            found.setdefault(node, node is goal or any([found[other] for other in after]))
            waiting.pop()
        else:
            waiting += missing
    return found


def _leaves(node: Any, reaches: dict[Any, bool]) -> tuple[Any, ...]:
    """The leaves that a node leads to by nodes without a way to the goal: its weights, or all leaves."""
    found: dict[Any, None] = {}
    seen: set[Any] = set()
    after = [other for other, _ in node.next_functions if other is not None]
    waiting = [other for other in after if not reaches[other]] if reaches[node] else [node]
    while waiting:
        other = waiting.pop()
        if other in seen:
            continue
        seen.add(other)
        if sequence_number(other) >= LEAF_NUMBER:
            found[other] = None
        waiting += [more for more, _ in other.next_functions if more is not None]
    return tuple(found)
