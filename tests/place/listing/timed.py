"""Graphs whose transfers take a second for each byte, and the favourites there."""

from random import Random

from place.graphs import cluster_of, graph_of

from baechi.place.listing.favourites import favourites
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph

TWO = cluster_of(1000, 1000)


def timed(seconds: dict[str, float], edges: list[tuple[str, str, int]]) -> LayerGraph:
    """Layers that take so long, and transfers that take a second for each byte."""
    nodes = {name: {"forward_s": s, "param_bytes": 1, "output_bytes": 1} for name, s in seconds.items()}
    return graph_of(nodes, edges)


def favourite_names(graph: LayerGraph, threshold: float = 0.1, cluster: Cluster = TWO) -> dict[str, str]:
    problem = Problem(graph, cluster)
    names = problem.indexed.names
    return {names[i]: names[j] for i, j in favourites(problem, threshold).child_of.items()}


def random_dag(seed: int, layers: int = 14) -> LayerGraph:
    """A graph with whole seconds and bytes, so that the program has many equal solutions."""
    chance = Random(seed)
    nodes = {
        f"l{i}": {"forward_s": chance.randint(0, 4), "param_bytes": 3, "output_bytes": 2}
        for i in range(layers)
    }
    edges = [
        (f"l{i}", f"l{j}", chance.randint(0, 5))
        for j in range(layers)
        for i in range(j)
        if chance.random() < 0.25
    ]
    return graph_of(nodes, edges, training=chance.random() < 0.5)
