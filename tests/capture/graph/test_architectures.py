"""What must hold of the graph of every architecture."""

import networkx as nx
import pytest
from architectures import HELD_IN, OTHERS, OWN, Architecture

from baechi.capture import capture
from baechi.records import Inputs


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("architecture", [*HELD_IN, *OTHERS, *OWN], ids=lambda a: a.name)
def test_weights_add_up(architecture: Architecture, training: bool) -> None:
    """Bytes of parameters and buffers are the model's, each owned once, and the graph is acyclic."""
    model = architecture.build()
    graph = capture(model, Inputs.of(architecture.inputs()), training=training)
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
