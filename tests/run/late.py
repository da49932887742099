"""A placer after which nearly every layer waits: the order of launch runs against the code's."""

import networkx as nx

import baechi


def late(graph: baechi.LayerGraph, cluster: baechi.Cluster) -> baechi.Plan:
    """Devices in turn; what the code reaches last launches first, as far as it can."""
    names = cluster.names
    device_of = {name: names[number % len(names)] for number, name in enumerate(graph.placed())}
    for group in graph.groups(apart=True).values():
        device_of |= dict.fromkeys(group, device_of[group[0]])
    code = {name: place for place, name in enumerate(graph.code_order())}
    ready = nx.lexicographical_topological_sort(graph.subgraph(device_of), key=lambda name: -code[name])
    return baechi.Plan(graph, cluster, device_of, tuple(ready))
