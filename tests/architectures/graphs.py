"""What must hold of the graph of every architecture."""

import networkx as nx
from torch import nn

from baechi import LayerGraph


def assert_weights_add_up(graph: LayerGraph, model: nn.Module) -> None:
    """Parameters and buffers, by the storages that they really have; a storage with a parameter in it
    is a parameter's."""
    parameters = {w.untyped_storage()._cdata: w.untyped_storage().nbytes() for w in model.parameters()}
    buffers = {w.untyped_storage()._cdata: w.untyped_storage().nbytes() for w in model.buffers()}
    assert graph.total("param_bytes") == sum(parameters.values())
    only = [size for storage, size in buffers.items() if storage not in parameters]
    assert graph.total("buffer_bytes") == sum(only)


def assert_each_is_owned_once(graph: LayerGraph, model: nn.Module) -> None:
    """Every weight has one node, and the graph is acyclic, in the code's order."""
    owned = [name for node in graph.placed() for name in graph.nodes[node].get("weights", [])]
    every = {n for n, _ in model.named_parameters(remove_duplicate=False)}
    every |= {n for n, _ in model.named_buffers(remove_duplicate=False)}
    assert len(owned) == len(set(owned)) and set(owned) == every
    assert nx.is_directed_acyclic_graph(graph)
    order = {name: index for index, name in enumerate(graph)}
    assert all(order[a] < order[b] for a, b in graph.edges)
