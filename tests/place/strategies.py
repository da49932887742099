"""Random layer graphs and clusters, small enough to shrink and odd enough to hurt."""

from random import Random
from typing import Any

import networkx as nx
from hypothesis import strategies as st

from baechi.records import Cluster, Device, LayerGraph, Link, Plan

# Rates are powers of two: sums of times are exact, and what ends together does so in every account.
seconds = st.sampled_from([0, 0, 0.25, 1, 1.5, 7])
few_bytes = st.integers(0, 20)
links = st.builds(
    Link, latency_s=st.sampled_from([0.0, 0.5, 30.0]), bytes_per_s=st.sampled_from([0.125, 8.0, float("inf")])
)


@st.composite
def layer_graphs(
    draw: st.DrawFn,
    training: bool | None = None,
    pins: bool = True,
    positive_times: bool = False,
    tensors: bool = True,
    most: int = 9,
) -> LayerGraph:
    """Graphs of up to 9 layers and 2 inputs, nodes in any order; on request without tensor ids."""
    size = draw(st.integers(0, most))
    times = st.sampled_from([0.25, 1, 1.5, 7]) if positive_times else seconds
    nodes: dict[str, dict[str, Any]] = {f"input:{index}": {"kind": "input"} for index in range(2)}
    for index in range(size):
        amounts = ("param_bytes", "grad_bytes", "output_bytes", "saved_bytes", "temp_bytes")
        nodes[f"l{index}"] = {name: draw(few_bytes) for name in amounts}
        nodes[f"l{index}"] |= {"upstream_grad_bytes": draw(few_bytes), "backward_s": draw(times)}
        nodes[f"l{index}"] |= {
            "forward_s": draw(times),
            "colocate": draw(st.sampled_from([*[None] * 4, 1, 2])),
        }
    for index in range(size):
        nodes[f"l{index}"] |= draw(keeping(range(index + 1, size)))
    if pins and size and draw(st.booleans()):
        nodes[f"l{draw(st.integers(0, size - 1))}"]["pin"] = "d0"
    graph: nx.DiGraph[str] = nx.DiGraph(training=draw(st.booleans()) if training is None else training)
    graph.add_nodes_from((name, nodes[name]) for name in draw(st.permutations(sorted(nodes))))
    sources = sorted(nodes)
    for index in range(size):
        for source in draw(st.lists(st.sampled_from(sources[: 2 + index]), unique=True, max_size=4)):
            graph.add_edge(source, f"l{index}", **draw(edge_attributes(tensors)))
    return LayerGraph.from_networkx(graph)


@st.composite
def keeping(draw: st.DrawFn, later: range) -> dict[str, Any]:
    """What the model's code keeps of an output, and how long, mostly nothing out of the ordinary."""
    kept: dict[str, Any] = {}
    if draw(st.integers(0, 5)) == 0:
        kept["held_bytes"] = draw(few_bytes)
    if draw(st.integers(0, 5)) == 0:
        kept["passing_bytes"] = draw(few_bytes)
    if later and draw(st.integers(0, 5)) == 0:
        kept["held_until"] = f"l{draw(st.sampled_from(later))}"
    return kept


@st.composite
def edge_attributes(draw: st.DrawFn, tensors: bool) -> dict[str, Any]:
    """A tensor with or without an id, or an order without a tensor."""
    if draw(st.integers(0, 5)) == 0:
        return {"order_only": True}
    tensor = draw(st.sampled_from([{}, {"tensor": "0"}, {"tensor": "1"}])) if tensors else {}
    return {"bytes": draw(few_bytes), **tensor}


@st.composite
def clusters(draw: st.DrawFn, memory: st.SearchStrategy[int] | None = None) -> Cluster:
    """Up to 4 devices, alike in nothing."""
    sizes = st.sampled_from([40, 80, 150, 10**6]) if memory is None else memory
    devices = tuple(
        Device(f"d{index}", memory_bytes=draw(sizes), speed=draw(st.sampled_from([0.5, 1.0, 4.0])))
        for index in range(draw(st.integers(1, 4)))
    )
    special = {("d0", device.name): draw(links) for device in devices if draw(st.booleans())}
    return Cluster(devices, special, draw(links), draw(st.sampled_from(["serial", "free"])))


def any_plan(graph: LayerGraph, cluster: Cluster, chance: Random) -> Plan:
    """A plan with groups anywhere, in any topological order, whether it fits or not."""
    device_of = {}
    for members in graph.groups().values():
        pins = [graph.nodes[name].get("pin") for name in members]
        device = next((pin for pin in pins if pin), chance.choice(cluster.names))
        device_of.update(dict.fromkeys(members, device))
    key = {name: chance.random() for name in graph}
    order = [name for name in nx.lexicographical_topological_sort(graph, key=key.get) if name in device_of]
    return Plan(graph, cluster, device_of, tuple(order))
