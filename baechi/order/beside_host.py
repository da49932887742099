"""Layers that the host itself computes: what is launched elsewhere first, so that it runs meanwhile.

    code      look-up (cpu)   left.0   left.1   left.2   cat
    launched  left.0   left.1   left.2   look-up (cpu)   cat

A layer on an accelerator is only queued, and the host continues at once. A layer on `"cpu"` blocks the
host until it has run. So all layers that the plan starts elsewhere before its end are launched first.
"""

from collections.abc import Iterable, Mapping, Sequence

import networkx as nx

from baechi.records.plan import Plan

Parents = Mapping[str, Iterable[str]]


def who_goes_first(plan: Plan, order: Sequence[str], parents: Parents) -> dict[str, tuple[str, ...]]:
    """By layer on the host, the last layer of each accelerator that launches before it."""
    on_host = plan.cluster.on_host
    if not any(plan.device_of[layer] in on_host for layer in order):
        return {}
    first: dict[str, tuple[str, ...]] = {}
    last: dict[str, str] = {}
    for layer in _by_time(plan, order, parents):
        device = plan.device_of[layer]
        if device not in on_host:
            last[device] = layer
        elif last:
            first[layer] = tuple(last.values())
    return first


def _by_time(plan: Plan, order: Sequence[str], parents: Parents) -> list[str]:
    on_host, time_of = plan.cluster.on_host, dict.fromkeys(order, 0.0)
    for span in plan.timeline.spans:
        if span.kind == "compute" and span.phase == "forward" and span.layer in time_of:
            # twice its time, so that accelerators that are faster than planned do not run out of work
            lasting_s = span.end_s - span.start_s if span.where in on_host else 0.0
            time_of[span.layer] = span.start_s + 2 * lasting_s
    place = {layer: index for index, layer in enumerate(order)}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(order)
    graph.add_edges_from((parent, layer) for layer in order for parent in parents[layer])
    before: dict[str, str] = {}
    for layer in order:
        device = plan.device_of[layer]
        if device in before:
            graph.add_edge(before[device], layer)
        before[device] = layer
    return list(nx.lexicographical_topological_sort(graph, key=lambda layer: (time_of[layer], place[layer])))
