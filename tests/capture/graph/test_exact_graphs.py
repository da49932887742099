"""Models whose graph is known by heart: every node, every byte, every edge."""

import json
from pathlib import Path
from typing import Any

import pytest
from capture.cases import CASES, Case

from baechi.capture import capture_each, union
from baechi.records import LayerGraph

pytestmark = pytest.mark.default_cases(2)

GRAPHS: dict[str, Any] = json.loads((Path(__file__).parent / "graphs.json").read_text())

NAMES = {
    "colocate": "colocate",
    "follows": "follows",
    "param_bytes": "param",
    "buffer_bytes": "buffer",
    "grad_bytes": "grad",
    "output_bytes": "output",
    "saved_bytes": "saved",
    "upstream_grad_bytes": "upstream",
    "temp_bytes": "temp",
    "writes": "writes",
    "unread": "unread",
    "twin": "twin",
    "weights": "weights",
}
"""Attributes of a node as `graphs.json` calls them; those left out there are zero, or not set."""


def captured(case: Case) -> LayerGraph:
    model, calls = case.make()
    graphs = capture_each(model, calls, training=case.training, no_split_module_classes=case.whole)
    return union(graphs)


def form(graph: LayerGraph) -> dict[str, Any]:
    """A graph in the form of `graphs.json`.

    `nodes`: name, kind, attributes. `edges`: source, target, bytes, tensor; or source, target, "order".
    """
    nodes = [
        [name, data["kind"], {short: data[long] for long, short in NAMES.items() if data.get(long)}]
        for name, data in graph.nodes(data=True)
    ]
    edges = [
        [a, b, "order"] if data.get("order_only") else [a, b, data["bytes"], data["tensor"]]
        for a, b, data in graph.edges(data=True)
    ]
    return {"nodes": nodes, "edges": sorted(edges)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key.replace(", ", "-"))
def test_graph(case: Case) -> None:
    """The graph is the expected one, node by node and edge by edge."""
    found, expected = form(captured(case)), GRAPHS[case.key]
    assert found["nodes"] == expected["nodes"]
    assert found["edges"] == expected["edges"]


def test_every_graph_has_a_case() -> None:
    """No graph is left that nothing is compared with, and no two cases have one name."""
    keys = [case.key for case in CASES]
    assert len(set(keys)) == len(keys) and set(keys) == GRAPHS.keys()
