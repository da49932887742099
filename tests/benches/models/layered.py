"""Layered random graphs: what the placers' speed and quality are measured on.

Rows of layers; each layer reads the outputs of one to three layers of the three rows above it. Times
and sizes are lognormal: a few layers and tensors are much larger than most, as in real models.
"""

from math import isqrt
from random import Random

import networkx as nx

from baechi.cost.memory import footprints
from baechi.records.cluster import Cluster
from baechi.records.device import Link
from baechi.records.graph import LayerGraph

MEAN_LAYER_S = 1e-3
LINK = Link(latency_s=0.0, bytes_per_s=1e9)

_ROWS_ABOVE = 3
_MOST_PARENTS = 3
_SPREAD = 0.8  # standard deviation of the logarithm
_WEIGHTS_BYTES = 4_000_000


def layered(
    layers: int, *, seed: int = 0, width: int | None = None, travel: float = 1.0, training: bool = False
) -> LayerGraph:
    """A layered random graph.

    Args:
        layers: how many layers.
        seed: equal seeds give equal graphs.
        width: layers in a row; random in each row, up to the root of `layers`, unless given.
        travel: how long a tensor travels over `LINK`, in mean layer times, on average.
        training: whether layers have a backward, of twice their forward, and keep their outputs for it.

    Returns:
        The graph, of about twice as many edges as layers.
    """
    chance = Random(seed)
    graph: nx.DiGraph[str] = nx.DiGraph(training=training, model=f"layered random graph of {layers} layers")
    rows: list[list[str]] = []
    left = layers
    while left:
        row = min(left, chance.randint(1, max(1, isqrt(layers))) if width is None else width)
        names = [f"row{len(rows)}.{column}" for column in range(row)]
        above = [name for names_above in rows[-_ROWS_ABOVE:] for name in names_above]
        for name in names:
            _add(graph, name, above, chance, travel)
        rows.append(names)
        left -= row
    return LayerGraph.from_networkx(graph)


def cluster_for(graph: LayerGraph, devices: int, *, slack: float = 1.5) -> Cluster:
    """Equal devices, of so much memory together that the graph fits with some slack.

    Args:
        graph: the layer graph.
        devices: how many.
        slack: their memory together over the bytes of all layers.
    """
    table = footprints(graph).values()
    needed = sum([part.permanent_bytes + max(part.forward_bytes, part.backward_bytes) for part in table])
    return Cluster.uniform(devices, memory=round(slack * needed / devices), link=LINK)


def _add(graph: "nx.DiGraph[str]", name: str, above: list[str], chance: Random, travel: float) -> None:
    """One layer more, with its edges; every edge of a layer carries its one output."""
    seconds, size = (chance.lognormvariate(-(_SPREAD**2) / 2, _SPREAD) for _ in range(2))
    weights = round(_WEIGHTS_BYTES * chance.random())
    output = round(size * travel * MEAN_LAYER_S * LINK.bytes_per_s)
    graph.add_node(
        name,
        kind="layer",
        forward_s=seconds * MEAN_LAYER_S,
        backward_s=2 * seconds * MEAN_LAYER_S,
        param_bytes=weights,
        grad_bytes=weights,
        output_bytes=output,
        saved_bytes=output,
        upstream_grad_bytes=output,
    )
    for parent in chance.sample(above, min(len(above), chance.randint(1, _MOST_PARENTS))):
        graph.add_edge(parent, name, bytes=graph.nodes[parent]["output_bytes"])
