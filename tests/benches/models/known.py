"""Placement problems whose best known step is written down, to compare `auto` with.

Layered random graphs are made here, for devices that receive several tensors at a time. Networks are read
from a folder, `BAECHI_NETWORKS`, in the JSON of Tarnawski et al., "Efficient Algorithms for Device Placement
of DNN Graph Operators" (NeurIPS 2020), whose latency inputs are public: `nodes` with `id`, `fpgaLatency`
(ms), `size` (bytes) and `colorClass` (a group); `edges` with `sourceId`, `destId` and `cost` (ms);
`maxFPGAs` devices of `maxSizePerFPGA` bytes. Here an edge's cost is paid once, from one device to another,
and the devices are the accelerators alone.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx as nx

from baechi.records.cluster import Cluster
from baechi.records.device import Link
from baechi.records.graph import LayerGraph
from benches.models.layered import MEAN_LAYER_S, cluster_for, layered

FOLDER = "BAECHI_NETWORKS"
"""Name of the environment variable with the folder of networks."""

DEVICES = 4

_LAYERED = (
    (100, 1, 0, 26.7),
    (100, 5, 0, 32.9),
    (300, 1, 0, 74.2),
    (300, 5, 0, 83.6),
    (300, 5, 1, 86.8),
    (1000, 1, 0, 252.7),
    (1000, 5, 0, 255.3),
)
"""Layers, transfers in mean layer times, seed, best known step in mean layer times."""

_NETWORKS_MS = {
    "LayerGraphs/bert24_inference": 96.31,
    "LayerGraphs/gnmt_inference": 200.7,
    "LayerGraphs/inceptionv3_inference": 1084.26,
    "LayerGraphs/resnet50_inference": 1479.24,
    "OperatorGraphs/bert_l-12_inference": 655.7,
    "OperatorGraphs/bert_l-3_inference": 224.3,
    "OperatorGraphs/bert_l-6_inference": 253.24,
    "OperatorGraphs/resnet50_inference": 469.55,
}
"""Best known steps by folder and file."""

_BYTES_A_MS = 1e6


@dataclass(frozen=True)
class Problem:
    """A graph to place on a cluster.

    Args:
        name: what it is.
        graph: the layer graph.
        cluster: the devices.
        known_s: the best step that is known; None if none is written down.
    """

    name: str
    graph: LayerGraph
    cluster: Cluster
    known_s: float | None


def problems(*, quick: bool = False) -> Iterator[Problem]:
    """All of them.

    Args:
        quick: the smallest alone.
    """
    for layers, travel, seed, known in _LAYERED[:1] if quick else _LAYERED:
        graph = layered(layers, seed=seed, travel=travel)
        name = f"layered, transfers of {travel}, seed {seed}"
        cluster = replace(cluster_for(graph, DEVICES), reception="free")
        yield Problem(name, graph, cluster, known * MEAN_LAYER_S)
    folder = os.environ.get(FOLDER)
    for path in sorted(Path(folder).rglob("*.json")) if folder else ():
        yield network(path)


def network(path: Path) -> Problem:
    """A network from its file.

    Args:
        path: of the JSON file.
    """
    read = json.loads(path.read_text())
    costs = {str(node["id"]): _costs(node) for node in read["nodes"]}
    edges = [(str(edge["sourceId"]), str(edge["destId"]), edge["cost"]) for edge in read["edges"]]
    unordered: nx.DiGraph[str] = nx.DiGraph([edge[:2] for edge in edges])
    unordered.add_nodes_from(costs)
    graph: nx.DiGraph[str] = nx.DiGraph(training=False, model=path.stem)
    for name in nx.lexicographical_topological_sort(unordered, key=int):
        graph.add_node(name, **costs[name])
    for source, target, cost_ms in edges:
        graph.add_edge(source, target, bytes=round(cost_ms * _BYTES_A_MS))
    link = Link(latency_s=0.0, bytes_per_s=_BYTES_A_MS * 1e3)
    cluster = Cluster.uniform(read["maxFPGAs"], memory=round(read["maxSizePerFPGA"]), link=link)
    name = f"{path.parent.name}/{path.stem}"
    known_s = _NETWORKS_MS[name] / 1e3 if name in _NETWORKS_MS else None
    return Problem(name, LayerGraph.from_networkx(graph), cluster, known_s)


def _costs(node: dict[str, Any]) -> dict[str, Any]:
    costs = {
        "kind": "layer",
        "forward_s": node["fpgaLatency"] / 1e3,
        "param_bytes": round(node["size"]),
        "output_bytes": 0,
    }
    return costs | ({"colocate": f"class {node['colorClass']}"} if "colorClass" in node else {})
