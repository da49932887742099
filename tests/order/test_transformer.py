"""The design document's count: a Transformer of 35 nodes on two devices needs no thread by its criterion."""

from itertools import pairwise

import pytest
from place.graphs import cluster_of, graph_of

from baechi.order import LaunchOrder, waiting_layers
from baechi.records import LayerGraph, Link
from baechi.verbs.plans import place

BLOCKS = 6
ENCODER = ["source.embedding", "source.position"]
ENCODER += [f"encoder.{block}.{part}" for block in range(BLOCKS) for part in ("attention", "feed_forward")]
DECODER = ["target.embedding", "target.position"]
DECODER += [f"decoder.{n}.{part}" for n in range(BLOCKS) for part in ("itself", "encoder", "feed_forward")]
DECODER += ["projection"]


def transformer() -> LayerGraph:
    """Two embeddings, two position encodings, 12 blocks of the encoder, 18 of the decoder, a projection."""
    nodes = {name: {"forward_s": 1e-3, "output_bytes": 1000} for name in (*ENCODER, *DECODER)}
    edges = [*pairwise(ENCODER), *pairwise(DECODER)]
    edges += [(ENCODER[-1], f"decoder.{block}.encoder") for block in range(BLOCKS)]
    return graph_of(nodes, [(*edge, {"bytes": 1000, "tensor": "0"}) for edge in edges])


@pytest.mark.parametrize("placer", ["m-etf", "m-sct"])
def test_threads(placer: str) -> None:
    """The decoder's first layers run beside the encoder, which the code reaches before them.

    By the order of the whole plan, all of the encoder but its first layer waits for them. By the order of
    each device, none does.
    """
    graph = transformer()
    assert len(graph) == 35
    plan = place(graph, cluster_of(10**6, 10**6, link=Link(1e-5, 1e9)), placer)
    assert plan.device_of["source.embedding"] != plan.device_of["target.embedding"]
    order = LaunchOrder.of(plan)
    assert waiting_layers(order, "gpu-topo") == []
    assert waiting_layers(order, "global-topo") == ENCODER[1:]
    assert len(ENCODER[1:]) == 13
