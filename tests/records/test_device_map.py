"""Device maps as accelerate writes them: what is followed, what gives way, and what is said of it."""

import logging
from typing import Any

import networkx as nx
import pytest
import torch

from baechi.errors import PlanError
from baechi.records import Cluster, LayerGraph, Plan
from baechi.records.device_map import check_names, index_of


def graph_of(nodes: dict[str, dict[str, Any]], edges: str = "") -> LayerGraph:
    """Nodes with the costs that are given, and edges such as `"a>b b>c"`."""
    graph = nx.DiGraph(training=False)
    for name, costs in nodes.items():
        graph.add_node(
            name, **{"forward_s": 1.0, "kind": "glue" if name.startswith("glue:") else "layer", **costs}
        )
    graph.add_edges_from([tuple(edge.split(">")) for edge in edges.split()], bytes=8)
    return LayerGraph.from_networkx(graph)


def layer(module: str, *weights: str, param_bytes: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "module": module,
        "weights": [*weights] or [f"{module}.weight"],
        "param_bytes": param_bytes,
        **more,
    }


def devices(graph: LayerGraph, mapping: dict[str, Any]) -> dict[str, str]:
    return dict(Plan.from_device_map(graph, Cluster.virtual(3), mapping).device_of)


def test_a_parameter_of_the_model_itself() -> None:
    """A functional op that reads one lies where the map puts the parameter."""
    scale = {"module": "", "weights": ["scale"], "param_bytes": 4}
    graph = graph_of({"a": layer("a"), "glue:/exp#0": scale}, "a>glue:/exp#0")
    assert devices(graph, {"a": 0, "scale": 1})["glue:/exp#0"] == "cpu:1"
    assert Plan.from_device_map(graph, Cluster.virtual(2), {"a": 0, "scale": 1}).to_device_map() == {
        "a": "cpu:0",
        "scale": "cpu:1",
    }


def test_a_cut_inside_a_layer(caplog: pytest.LogCaptureFixture) -> None:
    """It lies where most of its weights are mapped to, and that is said."""
    graph = graph_of({"attn": layer("attn", "attn.q", "attn.k", "attn.v"), "b": layer("b")}, "attn>b")
    assert devices(graph, {"attn.q": 0, "attn.k": 1, "attn.v": 1, "b": 2})["attn"] == "cpu:1"
    assert "attn is one layer, on cpu:1" in caplog.text


def test_a_torn_tie_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """The layers stay together, where the weights are; it was overridden in silence."""
    tied = {"module": "head", "colocate": "tie"}
    graph = graph_of(
        {"wte": layer("wte", "wte.weight", "head.weight", colocate="tie"), "head": tied}, "wte>head"
    )
    assert devices(graph, {"wte": 0, "head": 1}) == {"wte": "cpu:0", "head": "cpu:0"}
    assert "head is on cpu:0, since it shares memory with wte" in caplog.text


def test_a_torn_group_follows_most_of_its_bytes() -> None:
    """It was refused."""
    nodes = {"a": layer("a", colocate="g"), "b": layer("b", param_bytes=9, colocate="g")}
    assert set(devices(graph_of(nodes, "a>b"), {"a": 0, "b": 1}).values()) == {"cpu:1"}


def test_unused_modules_do_not_decide() -> None:
    """A module that nothing calls, mapped elsewhere than the layer that it lies beside, was refused."""
    nodes = {
        "a": layer("a", colocate="g"),
        "pooler": layer("pooler", param_bytes=99, unread=True, colocate="g"),
    }
    assert devices(graph_of(nodes), {"a": 1, "pooler": 0})["a"] == "cpu:1"


def test_silence_follows_the_inputs() -> None:
    """Functional ops, and layers without weights, of which a map says nothing: with their inputs."""
    nodes = {"a": layer("a"), "relu": {"module": "relu"}, "glue:/cat#0": {"module": ""}, "b": layer("b")}
    found = devices(graph_of(nodes, "a>relu relu>glue:/cat#0 glue:/cat#0>b"), {"a": 2, "b": 1})
    assert found["relu"] == found["glue:/cat#0"] == "cpu:2"
    before = {"glue:/x#0": {"module": ""}, "glue:/y#0": {"module": ""}, "b": layer("b")}
    assert devices(graph_of(before, "glue:/x#0>glue:/y#0 glue:/y#0>b"), {"b": 1})["glue:/x#0"] == "cpu:1"


def test_what_accelerate_offloads(caplog: pytest.LogCaptureFixture) -> None:
    """It lies where accelerate computes with it; a cluster with the CPU as a device keeps it there."""
    graph = graph_of({"a": layer("a"), "b": layer("b"), "c": layer("c")}, "a>b b>c")
    assert devices(graph, {"a": 1, "b": "disk", "c": "cpu"}) == dict.fromkeys("abc", "cpu:1")
    assert "leaves b, c to the host" in caplog.text
    beside = Cluster((*Cluster.virtual(1).devices, Cluster.uniform(1).devices[0].__class__("cpu")))
    assert Plan.from_device_map(graph, beside, {"": 0, "c": "cpu"}).device_of["c"] == "cpu"


def test_devices_by_number_name_or_torch() -> None:
    """Those of accelerate's maps, and back."""
    graph = graph_of({"a": layer("a"), "b": layer("b"), "c": layer("c")}, "a>b b>c")
    mapping = {"a": 0, "b": "cpu:1", "c": torch.device("cpu", 2)}
    plan = Plan.from_device_map(graph, Cluster.virtual(3), mapping)
    assert plan.to_device_map(index=True) == {"a": 0, "b": 1, "c": 2}
    assert [index_of(name) for name in ("cuda:3", "cuda:1/0", "cpu", "device:11")] == [3, 1, "cpu", 11]


def test_unknown_names(caplog: pytest.LogCaptureFixture) -> None:
    """A model knows its names, and the one that was meant; a graph warns of those that it lacks."""
    with pytest.raises(PlanError, match="'decodr': is it 'decoder'"):
        check_names({"encoder": 0, "decodr": 1, "": 0}, ["encoder", "decoder"])
    caplog.set_level(logging.WARNING)
    devices(graph_of({"a": layer("a")}), {"": 0, "decodr": 1})
    assert "decodr: nothing so called runs" in caplog.text
