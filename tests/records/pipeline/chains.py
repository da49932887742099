"""Small graphs and plans for pipelines."""

from collections.abc import Sequence

import networkx as nx

from baechi.records import Cluster, LayerGraph, Link, Plan


def chain(times: Sequence[tuple[float, float]], *, training: bool = True, size: float = 0) -> LayerGraph:
    """Layers l0, l1, ... in a row, with seconds of forward and backward."""
    graph = nx.DiGraph(training=training)
    graph.add_node("x", kind="input")
    names = [f"l{number}" for number in range(len(times))]
    for name, (forward, backward) in zip(names, times, strict=True):
        graph.add_node(name, forward_s=forward, backward_s=backward)
    graph.add_edges_from(zip(["x", *names], names, strict=False), bytes=size)
    return LayerGraph.from_networkx(graph)


def over(graph: LayerGraph, devices: Sequence[int], link: Link | None = None) -> Plan:
    """The graph's layers, in code order, on devices of a cluster of equal ones."""
    cluster = Cluster.virtual(max(devices) + 1, link=link or Link(0.0, float("inf")))
    names = list(graph.placed())
    return Plan(graph, cluster, {name: f"cpu:{d}" for name, d in zip(names, devices, strict=True)})


def equal_chain(devices: int, runs: int = 1, forward: float = 1.0, backward: float = 2.0) -> Plan:
    """One layer a run, round the devices several times; each device has `forward` and `backward` in all."""
    graph = chain([(forward / runs, backward / runs)] * (devices * runs))
    return over(graph, [*range(devices)] * runs)
