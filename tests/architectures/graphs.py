"""What must hold of the graph of every architecture."""

import networkx as nx
from torch import nn

from baechi import LayerGraph


def assert_weights_add_up(graph: LayerGraph, model: nn.Module) -> None:
    """Bytes of parameters and buffers are the model's, each owned once, and the graph is acyclic.

    Args:
        graph: of the model.
        model: the plain model, where it was built.
    """
    for weights, attribute in ((model.parameters, "param_bytes"), (model.buffers, "buffer_bytes")):
        held = {id(w.untyped_storage()): w.untyped_storage().nbytes() for w in weights()}
        assert graph.total(attribute) == sum(held.values())
    owned = [name for node in graph.placed() for name in graph.nodes[node].get("weights", [])]
    every = {n for n, _ in model.named_parameters(remove_duplicate=False)}
    every |= {n for n, _ in model.named_buffers(remove_duplicate=False)}
    assert len(owned) == len(set(owned)) and set(owned) == every
    assert nx.is_directed_acyclic_graph(graph)
    order = {name: index for index, name in enumerate(graph)}
    assert all(order[a] < order[b] for a, b in graph.edges)
