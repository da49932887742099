"""Plans whose best pipeline is known closely: by shape, compute-bound or with slow links."""

from itertools import pairwise

import networkx as nx
from records.pipeline.chains import chain, equal_chain, over

from baechi.records import LayerGraph, Link, Plan

FAST = Link(0.001, 1e9)


def uneven(devices: int) -> Plan:
    return over(
        chain([(1.0 + 0.1 * (n % 3), 2.0 + 0.3 * (n % 2)) for n in range(devices)]), [*range(devices)], FAST
    )


def towers(devices: int) -> Plan:
    """Two chains side by side, each over half of the devices, and a head behind both."""
    graph = nx.DiGraph(training=True)
    half = devices // 2
    names = [f"{tower}{n}" for tower in "ab" for n in range(half)]
    for name in names:
        graph.add_node(name, forward_s=1.0, backward_s=2.0)
    graph.add_node("head", forward_s=0.1, backward_s=0.2)
    for tower in "ab":
        chained = [f"{tower}{n}" for n in range(half)] + ["head"]
        graph.add_edges_from(pairwise(chained), bytes=8)
    return over(LayerGraph.from_networkx(graph), [*range(half), *range(half, 2 * half), 2 * half - 1], FAST)


def skips(devices: int) -> Plan:
    """A chain whose first half hands each output to the layer opposite as well."""
    layers = 2 * devices
    graph = chain([(0.5, 1.0)] * layers)
    for n in range(devices - 1):
        graph.add_edge(f"l{n}", f"l{layers - 1 - n}", bytes=8)
    return over(graph, [n // 2 for n in range(layers)], FAST)


def folded(devices: int) -> Plan:
    """An uneven chain that comes back: each device has a layer of the first half and the one opposite."""
    layers = 2 * devices
    graph = chain([(1.0 + 0.1 * (n % 3), 2.0 + 0.3 * (n % 2)) for n in range(layers)])
    return over(graph, [min(n, layers - 1 - n) for n in range(layers)], FAST)


def slow_links(devices: int) -> Plan:
    return over(chain([(1.0, 2.0)] * devices), [*range(devices)], Link(0.9, 1e9))


def skips_over_slow_links(devices: int, runs: int) -> Plan:
    """Skips as above, one layer after the other round the devices; tensors travel for 0.3 seconds."""
    layers = devices * runs
    graph = chain([(0.5, 1.0)] * layers)
    for n in range(layers // 2 - 1):
        graph.add_edge(f"l{n}", f"l{layers - 1 - n}", tensor="kept", bytes=8)
    return over(graph, [*range(devices)] * runs, Link(0.3, 1e9))


SHAPES = {
    "equal": equal_chain,
    "uneven": uneven,
    "towers": towers,
    "skips": skips,
    "slow links": slow_links,
    "two virtual stages": lambda devices: equal_chain(devices, 2),
    "four virtual stages": lambda devices: equal_chain(devices, 4),
}
