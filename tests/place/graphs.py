"""Small graphs and clusters made by hand, for the tests of placers and simulator."""

from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import Any

import networkx as nx

from baechi.records import Cluster, Device, LayerGraph, Link

FREE = Link(latency_s=0.0, bytes_per_s=float("inf"))
BYTE_A_SECOND = Link(latency_s=0.0, bytes_per_s=1.0)


def graph_of(
    nodes: dict[str, dict[str, Any]], edges: Iterable[tuple[Any, ...]] = (), **attributes: Any
) -> LayerGraph:
    """A graph from attributes by node and edges `(source, target, bytes or attributes)`."""
    graph: nx.DiGraph[str] = nx.DiGraph(**attributes)
    graph.add_nodes_from(nodes.items())
    for source, target, *rest in edges:
        data = rest[0] if rest else {}
        graph.add_edge(source, target, **(data if isinstance(data, dict) else {"bytes": data}))
    return LayerGraph.from_networkx(graph)


def cluster_of(
    *memory_bytes: int, link: Link = BYTE_A_SECOND, speeds: Iterable[float] = (), **rest: Any
) -> Cluster:
    """Devices `d0`, `d1`, ... with so much memory; everything is uploaded for free."""
    all_speeds = [*speeds, *[1.0] * len(memory_bytes)]
    devices = tuple(
        Device(f"d{index}", memory_bytes=size, speed=all_speeds[index])
        for index, size in enumerate(memory_bytes)
    )
    uploads = {("host", device.name): FREE for device in devices}
    return Cluster(devices, {**uploads, **rest.pop("links", {})}, link, **rest)


def chain(length: int = 6, **attributes: Any) -> LayerGraph:
    """Equal layers, one after the other, behind an input."""
    layer = dict(
        forward_s=1, backward_s=2, param_bytes=10, grad_bytes=10, output_bytes=4, saved_bytes=4,
        upstream_grad_bytes=4, temp_bytes=1,
    )  # fmt: skip
    names = [f"l{index}" for index in range(length)]
    edges = [(source, target, 4) for source, target in pairwise(["input:x", *names])]
    return graph_of(
        {"input:x": {"kind": "input"}, **{name: dict(layer) for name in names}}, edges, **attributes
    )


def branches(width: int = 3, depth: int = 2, **attributes: Any) -> LayerGraph:
    """A layer, chains beside each other, and a layer that joins them."""
    layer = dict(forward_s=1, backward_s=1, param_bytes=5, output_bytes=3, saved_bytes=3)
    nodes = {"fork": dict(layer)}
    edges: list[tuple[Any, ...]] = []
    for branch in range(width):
        names = ["fork", *(f"b{branch}.{index}" for index in range(depth)), "join"]
        edges += [(source, target, 3) for source, target in pairwise(names)]
        nodes |= {name: dict(layer) for name in names[1:-1]}
    return graph_of({**nodes, "join": dict(layer)}, edges, **attributes)


def late_groups(groups: int = 4, heavy_s: float = 10) -> LayerGraph:
    """Groups of a light layer, free to start at the beginning, and a heavy one behind it."""
    nodes: dict[str, dict[str, Any]] = {}
    for index in range(groups):
        nodes[f"light{index}"] = {"forward_s": 0, "colocate": f"g{index}", "output_bytes": 1}
    for index in range(groups):
        nodes[f"heavy{index}"] = {"forward_s": heavy_s, "colocate": f"g{index}", "output_bytes": 1}
    return graph_of(nodes, [(f"light{index}", f"heavy{index}", 1) for index in range(groups)])


def layered(layers: int, seed: int, *, travel: float = 1, width: int = 6, **attributes: Any) -> LayerGraph:
    """Rows of layers with lognormal times, each with one to three parents in the three rows before.

    A transfer over a link of a byte a second takes `travel` times as long as a layer, on average.
    """
    chance = Random(seed)
    nodes: dict[str, dict[str, Any]] = {}
    edges: list[tuple[Any, ...]] = []
    for number in range(layers):
        begin = number // width * width
        near = range(max(0, begin - 3 * width), begin)
        seconds, size = chance.lognormvariate(3, 0.5), chance.randint(10, 100)
        nodes[f"l{number}"] = {"forward_s": seconds, "backward_s": 2 * seconds, "param_bytes": 100 * size}
        tensor = travel * chance.lognormvariate(3, 0.5)
        nodes[f"l{number}"]["output_bytes"] = tensor
        for parent in chance.sample(near, min(len(near), chance.randint(1, 3))):
            edges.append((f"l{parent}", f"l{number}", nodes[f"l{parent}"]["output_bytes"]))
    return graph_of(nodes, edges, **attributes)


HAND_MADE = {
    "empty": graph_of({}),
    "inputs only": graph_of({"input:x": {"kind": "input"}, "input:y": {"kind": "input"}}),
    "one layer": graph_of({"a": {"forward_s": 1, "param_bytes": 8, "output_bytes": 8}}),
    "chain": chain(),
    "chain in training": chain(training=True),
    "branches": branches(),
    "branches in training": branches(width=4, training=True, optimizer="adam"),
    "zero times": graph_of(
        {name: {"param_bytes": 3, "output_bytes": 2} for name in "abcd"},
        [("a", "b", 2), ("a", "c", 2), ("b", "d", 2), ("c", "d", 2)],
    ),
    "huge and empty tensors": graph_of(
        {name: {"forward_s": 1, "output_bytes": 1} for name in "abc"}, [("a", "b", 10**15), ("b", "c", 0)]
    ),
    "tied ends": graph_of(
        {
            "embed": {"forward_s": 1, "param_bytes": 20, "output_bytes": 2, "colocate": "tied"},
            "body": {"forward_s": 5, "param_bytes": 5, "output_bytes": 2},
            "head": {"forward_s": 2, "output_bytes": 9, "colocate": "tied"},
        },
        [("embed", "body", 2), ("body", "head", 2)],
        training=True,
    ),
    "pinned": graph_of(
        {"a": {"forward_s": 1, "pin": "d0"}, "b": {"forward_s": 1}, "c": {"forward_s": 1, "pin": "d0"}},
        [("a", "b", 1), ("b", "c", 1)],
    ),
    "in place": graph_of(
        {
            "a": {"output_bytes": 8},
            "read": {"output_bytes": 8},
            "write": {"output_bytes": 0, "colocate": "a"},
        },
        [("a", "read", 8), ("a", "write", 8), ("read", "write", {"order_only": True})],
    ),
    "late groups": late_groups(),
    "code order runs backwards": graph_of(
        {name: {"forward_s": 1, "output_bytes": 1} for name in "cba"}, [("a", "b", 1), ("b", "c", 1)]
    ),
}

CLUSTERS = {
    "one device": cluster_of(10**6),
    "two devices": cluster_of(10**6, 10**6),
    "unequal devices": cluster_of(10**6, 400, 90, speeds=(1, 3, 0.5), link=Link(0.5, 8.0)),
    "free reception": cluster_of(10**6, 10**6, 10**6, reception="free"),
    "more devices than layers": cluster_of(*[10**6] * 12, link=FREE),
}
