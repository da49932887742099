"""The order in which layers can launch: not all of them can wait for their turn (`run.reorder`).

    code    a   drop   b   c        plan   b   a   drop   c
    here    a   drop   b   c        `drop` draws: it launches where the code reaches it, and before it `a`

A layer that draws random numbers or writes memory launches when the code reaches it, after what it reads. One
that may write what others read launches after all that the code reached before it.
"""

from collections.abc import Sequence

import networkx as nx

from baechi.cost.indexed import FROM_HOST, IndexedGraph


def launchable(indexed: IndexedGraph, order: Sequence[int]) -> Sequence[int]:
    """The nearest order in which layers can launch.

    Args:
        indexed: the graph, in code order.
        order: all layers in topological order.
    """
    all_at_once = [costs.kind == "layer" and (bool(costs.writes) or costs.reaches) for costs in indexed.costs]
    bound = [costs.kind == "layer" and costs.as_reached for costs in indexed.costs]
    if not any(bound) and not any(all_at_once):
        return order
    parents = [
        [indexed.source[tensor] for tensor in indexed.reads[layer] if indexed.source[tensor] != FROM_HOST]
        + list(indexed.before[layer])
        for layer in range(len(indexed))
    ]
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(order)
    graph.add_edges_from((parent, layer) for layer, found in enumerate(parents) for parent in found)
    gone: set[int] = set()  # launched by the last event
    event = None  # a node of its own: after what has launched by then, before all that is reached later
    for layer, (is_bound, takes_all) in enumerate(zip(bound, all_at_once, strict=True)):
        if event is not None:
            graph.add_edge(event, layer)
        if not is_bound and not takes_all:
            continue
        due = list(range(layer + 1)) if takes_all else [layer]
        following = -1 - layer
        if event is not None:
            graph.add_edge(event, following)
        event = following
        while due:
            one = due.pop()
            if one not in gone:
                gone.add(one)
                graph.add_edge(one, event)
                due += parents[one]
    place = {layer: number for number, layer in enumerate(order)}
    found = nx.lexicographical_topological_sort(graph, key=lambda node: place.get(node, -1))
    return [node for node in found if node >= 0]
