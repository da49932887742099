"""Which modules that could be decomposed are kept whole: decided on the decomposed graph.

A module is kept whole if its own code does heavy work (an operation that has a formula for its
arithmetic: attention, einsum, a matrix product), or calls its layers again and again, each call
needing the one before (recurrence); and if nothing in it has weights. All other modules are
decomposed: their own work is light (add, cat, reshape, masks, dropout), also where it reads a weight
(a position embedding), or they have branches that could run side by side. A matrix product with a
weight is what a linear layer does: it keeps a module whole only if all layers in it are its own
children. The root is never kept whole for these reasons, nor is a module with many layers; what the
user names is.

    attention   q ─┐                whole: the product is its own work, q, k, v are single layers
                k ─┼─ q·k ─ ·v ─ o
                v ─┘
    two towers  a1 ─ a2 ─ a3 ─┐     decomposed: two branches
                b1 ─ b2 ─ b3 ─┴─ a·b
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

import networkx as nx

from baechi.capture.graph.granularity import Granularity, divisible
from baechi.capture.graph.weights import by_module
from baechi.capture.watch.trace import Call, HostWait, Op, Trace
from baechi.records.graph import LayerGraph

MOST_LAYERS = 8
"""A module with more layers that do heavy work is decomposed, even if it does work of its own."""

MOST_RECURRENT_LAYERS = 2
"""Recurrence over more layers than these is decomposed: they could run as a pipeline."""

BRANCH_LAYERS = 3
"""So many layers in a row, beside as many others, are branches."""


@dataclass(slots=True)
class _Inside:
    """What is in a module that could be kept whole.

    Args:
        computes: whether its own code does heavy work on values alone, as attention does.
        multiplies: whether its own code does heavy work with weights, as a linear layer does.
        work: names of the operators of both.
        weighted: whether anything in it has or reads weights.
        calls: in its first call, the calls of layers with weights, in code order.
    """

    computes: bool = False
    multiplies: bool = False
    work: dict[str, None] = field(default_factory=dict)
    weighted: bool = False
    calls: list[Call] = field(default_factory=list)


def fold(granularity: Granularity, graph: LayerGraph, trace: Trace) -> Granularity:
    """Keep whole what gains nothing from being decomposed."""
    nodes = _nodes_in(graph)
    whole = {
        module: divisible(why, trace.modules[module])
        for module, inside in _composites(granularity, trace).items()
        if module not in granularity.split
        and (why := _reason_to_stay_whole(module, inside, graph, nodes.get(module, ())))
    }
    return replace(
        granularity, layers=granularity.layers | whole.keys(), because={**whole, **granularity.because}
    )


def _nodes_in(graph: LayerGraph) -> dict[str, list[str]]:
    """By module, the nodes in and below it."""
    found: dict[str, list[str]] = {}
    for name in graph.placed():
        module = graph.module_of(name)
        while module:
            found.setdefault(module, []).append(name)
            module = module.rpartition(".")[0]
    return found


def _composites(granularity: Granularity, trace: Trace) -> dict[str, _Inside]:
    """By qualified name, the modules that call others and are no layers; the root is none of them."""
    weights = by_module(trace)
    found: dict[str, _Inside] = {}
    for event in trace.events:
        if isinstance(event, HostWait):
            continue
        layer = granularity.layer_of(event.call)
        if isinstance(event, Op):
            if layer is None and event.call.module:
                reads = any(use.storage.parameter for use in event.reads)
                inside = found.setdefault(event.call.module, _Inside())
                inside.computes |= bool(event.flops) and not reads
                inside.multiplies |= bool(event.flops) and reads
                inside.weighted |= reads
                if event.flops:
                    inside.work[event.name] = None
        elif event.kind == "enter":
            if layer is None and event.call.module:
                inside = found.setdefault(event.call.module, _Inside())
                inside.weighted |= bool(weights.get(event.call.module))
            if layer is event.call and any(storage.parameter for storage in weights.get(layer.module, ())):
                for outer in _around(layer):
                    if outer.turn == 0 and outer.module:
                        found.setdefault(outer.module, _Inside()).calls.append(layer)
    return found


def _around(call: Call) -> Iterator[Call]:
    outer = call.parent
    while outer is not None:
        yield outer
        outer = outer.parent


def _reason_to_stay_whole(module: str, inside: _Inside, graph: LayerGraph, nodes: Iterable[str]) -> str:
    """Why a module is kept whole; `""` if it is decomposed."""
    if not inside.weighted:
        return "nothing in it has weights"
    layers = {call.module for call in inside.calls}
    if len({call.module for call in inside.calls if graph.costs(call.node).flops}) > MOST_LAYERS:
        return ""
    called = [call.node for call in inside.calls]  # a layer that is registered elsewhere, too
    within = graph.subgraph([*nodes, *called])
    if inside.computes or (inside.multiplies and _is_shallow(module, inside.calls)):
        work = f"its own code does heavy work ({', '.join(inside.work)})"
        return "" if _has_branches(module, inside.calls, within) else work
    recurs = len(layers) <= MOST_RECURRENT_LAYERS and _recurs(inside.calls, within)
    return "each call of a layer in it needs the call before" if recurs else ""


def _has_branches(module: str, calls: list[Call], within: LayerGraph) -> bool:
    """Whether chains of layers that do heavy work run side by side."""
    depth = module.count(".") + 1
    heavy = {call.node: call for call in calls if within.costs(call.node).flops}
    before = {name: ({name} | nx.ancestors(within, name)) & heavy.keys() for name in heavy}
    for one, other in combinations(heavy, 2):
        if one in before[other] or other in before[one]:
            continue
        chains = before[one] - before[other], before[other] - before[one]
        direct = all(heavy[name].module.count(".") == depth for chain in chains for name in chain)
        if min(map(len, chains)) >= (BRANCH_LAYERS if direct else BRANCH_LAYERS - 1):
            return True
    return False


def _is_shallow(module: str, calls: list[Call]) -> bool:
    """Whether all layers with weights in a module are its own children."""
    return all(call.module.rpartition(".")[0] == module for call in calls)


def _recurs(calls: list[Call], within: LayerGraph) -> bool:
    """Whether a layer is called again, and needs its call before."""
    turns: dict[str, list[str]] = {}
    for call in calls:
        turns.setdefault(call.module, []).append(call.node)
    return any(nx.has_path(within, one, other) for nodes in turns.values() for one, other in pairwise(nodes))
