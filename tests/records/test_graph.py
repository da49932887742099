"""A layer graph of any world is checked, completed and kept in code order."""

import networkx as nx
import pytest

from baechi.errors import RecordError
from baechi.records import LayerGraph


def test_defaults_are_filled() -> None:
    """A graph from elsewhere gets kinds and text names; missing amounts are 0."""
    graph = LayerGraph.from_networkx(nx.DiGraph([(1, 2)]))
    assert list(graph) == ["1", "2"]
    assert graph.nodes["1"]["kind"] == "layer"
    assert graph.amount("1", "param_bytes") == 0
    assert graph.training is False


@pytest.mark.parametrize(
    "attributes, fault",
    [
        ({"forward_s": -1}, "forward_s is -1"),
        ({"forward_s": {"cpu": float("inf")}}, r"forward_s\['cpu'\] is inf"),
        ({"param_bytes": "4"}, "param_bytes is '4'"),
        ({"kind": "op"}, "kind is 'op'"),
    ],
)
def test_malformed_nodes(attributes: dict[str, object], fault: str) -> None:
    """Negative, infinite and foreign values are named with their node."""
    graph = nx.DiGraph()
    graph.add_node("a", **attributes)
    with pytest.raises(RecordError, match=fault):
        LayerGraph.from_networkx(graph)


def test_all_faults_at_once() -> None:
    """A cycle, an edge into an input and a bad edge are told together."""
    graph = nx.DiGraph([("a", "b"), ("b", "a"), ("a", "input:x")])
    graph.nodes["input:x"]["kind"] = "input"
    graph.edges["a", "b"]["bytes"] = -2
    with pytest.raises(RecordError) as caught:
        LayerGraph.from_networkx(graph)
    assert len(caught.value.faults) == 3


def test_multigraphs_are_refused() -> None:
    """Parallel edges have no place in a layer graph."""
    with pytest.raises(RecordError, match=r"nx\.DiGraph"):
        LayerGraph.from_networkx(nx.MultiDiGraph())


def test_seconds_by_kind_and_speed() -> None:
    """One number is divided by the speed; times by kind are used as they are, and must be there."""
    graph = LayerGraph()
    graph.add_node("a", forward_s=2.0, backward_s={"L4": 3.0})
    assert graph.seconds("a", "forward_s", "L4", speed=4.0) == 0.5
    assert graph.seconds("a", "backward_s", "L4", speed=4.0) == 3.0
    with pytest.raises(RecordError, match="no backward_s for devices of kind 'H200'"):
        graph.seconds("a", "backward_s", "H200")


def test_round_trip(tmp_path: object) -> None:
    """Nodes, edges, their order and the graph's own attributes come back from a file."""
    graph = LayerGraph(training=True)
    graph.add_node("z", forward_s={"cpu": 1.0}, weights=["z.weight"])
    graph.add_node("a", colocate="z")
    graph.add_edge("z", "a", bytes=4, tensor="0")
    graph.save(f"{tmp_path}/g.json")
    back = LayerGraph.load(f"{tmp_path}/g.json")
    assert list(back) == ["z", "a"] and back.training
    assert back.nodes["z"]["weights"] == ["z.weight"] and back.edges["z", "a"]["bytes"] == 4


@pytest.mark.parametrize("key", ["self", "node_for_adding", "u_of_edge", "v_of_edge"])
def test_unknown_attributes_are_kept(key: str) -> None:
    """Also those that are called as an argument of a method of NetworkX."""
    graph = LayerGraph(training=True)
    graph.add_nodes_from([("a", {key: 1}), ("b", {})])
    graph.add_edges_from([("a", "b", {key: 2})])
    for back in (LayerGraph.from_json(graph.to_json()), LayerGraph.from_networkx(graph)):
        assert back.nodes["a"][key] == 1 and back.edges["a", "b"][key] == 2


def test_null_notes_are_as_if_missing() -> None:
    """A note that is null in a file, or None in a graph, says nothing."""
    graph = LayerGraph(training=True)
    graph.add_edge("a", "b")
    empty = dict.fromkeys(["training", "recompute", "containers", "model", "microbatches", "other"])
    for back in (
        LayerGraph.from_body({**graph.body(), "graph": empty}),
        LayerGraph.from_networkx(nx.DiGraph(graph, **empty)),
    ):
        assert back.graph == {"training": False}


def test_groups_in_code_order() -> None:
    """Nodes of one group stand together; a group's id is no node's name."""
    graph = LayerGraph()
    for name, group in (("a", None), ("b", "a"), ("c", "a")):
        graph.add_node(name, colocate=group)
    assert list(graph.groups().values()) == [["a"], ["b", "c"]]


def test_groups_with_what_follows() -> None:
    """What follows a node is in its group, through others that follow; apart it is in a group of its own."""
    graph = LayerGraph()
    rows = (("a", None, None), ("b", "g", None), ("op", None, "b"), ("c", None, None), ("next", "h", "op"))
    for name, group, followed in (*rows, ("last", "h", None)):
        graph.add_node(name, colocate=group, follows=followed)
    assert list(graph.groups().values()) == [["a"], ["b", "op", "next", "last"], ["c"]]
    assert list(graph.groups(apart=True).values()) == [["a"], ["b"], ["op"], ["c"], ["next", "last"]]
