"""Graphs as integers."""

import networkx as nx
import pytest
from hypothesis import given
from place.graphs import cluster_of, graph_of
from place.strategies import layer_graphs

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph, seconds_by_device, topological_names
from baechi.errors import RecordError
from baechi.records import Device, LayerGraph


def test_everything() -> None:
    """Layers, tensors, orders and groups of a small graph."""
    graph = graph_of(
        {"input:x": {"kind": "input"}, "a": {"output_bytes": 4}, "b": {"colocate": 1}, "c": {"colocate": 1}},
        [("input:x", "a", 8), ("a", "b", 4), ("a", "c", 4), ("b", "c", {"order_only": True})],
    )
    indexed = IndexedGraph.of(graph)
    assert indexed.names == ["a", "b", "c"]
    assert indexed.origin == ["input:x", "a"]
    assert (indexed.source, indexed.size_bytes, indexed.consumers) == ([FROM_HOST, 0], [8, 4], [(0,), (1, 2)])
    assert (indexed.reads, indexed.makes) == ([(0,), (1,), (1,)], [(1,), (), ()])
    assert (indexed.before, indexed.after) == ([(), (), (1,)], [(), (2,), ()])
    assert (indexed.members, indexed.group_of) == ([(0,), (1, 2)], [0, 1, 1])


@pytest.mark.parametrize(
    ("output_bytes", "edge_bytes", "is_view"), [(0, 4, True), (4, 4, False), (2, 4, True), (0, 0, False)]
)
def test_is_view(output_bytes: int, edge_bytes: int, is_view: bool) -> None:
    """A layer that hands on more than the memory it made hands on memory of its inputs."""
    graph = graph_of({"a": {"output_bytes": output_bytes}, "b": {}}, [("a", "b", edge_bytes)])
    assert IndexedGraph.of(graph).is_view[0] == is_view


def test_returned_view() -> None:
    """A layer that makes no memory and is read by nobody may return a view."""
    indexed = IndexedGraph.of(graph_of({"a": {"output_bytes": 4}, "b": {"output_bytes": 1}, "view": {}}))
    assert indexed.is_view == [False, False, True]


def test_code_order_if_topological() -> None:
    """Code order is kept where it can be."""
    graph = graph_of({name: {} for name in "dbca"}, [("d", "a", 1), ("b", "c", 1)])
    assert topological_names(graph) == ["d", "b", "c", "a"]


def test_nearest_order() -> None:
    """Else what comes first in code order comes first of what can come."""
    graph = graph_of({name: {} for name in "dbca"}, [("c", "d", 1)])
    assert topological_names(graph) == ["b", "c", "d", "a"]


@given(layer_graphs())
def test_order_is_that_of_networkx(graph: LayerGraph) -> None:
    """It is the lexicographical topological order by place in the code."""
    place = {name: index for index, name in enumerate(graph)}
    layers = graph.subgraph(graph.placed())
    assert topological_names(graph) == list(nx.lexicographical_topological_sort(layers, key=place.get))


def test_seconds_by_device() -> None:
    """Numbers are divided by speed, times by kind taken as they are; equal devices share a list."""
    graph = graph_of({"a": {"forward_s": 6}, "b": {"forward_s": {"cpu": 1.0}}})
    seconds = seconds_by_device(graph, ["a", "b"], cluster_of(1, 1, 1, speeds=(1, 2, 1)).devices, "forward_s")
    assert seconds == [[6.0, 1.0], [3.0, 1.0], [6.0, 1.0]]
    assert seconds[0] is seconds[2]


def test_unknown_kind() -> None:
    """Times by kind that miss a device's kind are refused."""
    graph = graph_of({"a": {"forward_s": {"L4": 1.0}}})
    with pytest.raises(RecordError, match="'V100'"):
        seconds_by_device(graph, ["a"], [Device("d", kind="V100")], "forward_s")


def test_what_keeps_a_view_keeps_its_base() -> None:
    """A view is a keeper of what it is a view of, through other views, if one of its readers keeps it."""
    attributes = {name: {"output_bytes": 4 * (name in "ab")} for name in ("a", "view", "twice", "b")}
    graph = graph_of(attributes)
    graph.add_edge("a", "view", bytes=4, unsaved=True)
    graph.add_edge("view", "twice", bytes=4, unsaved=True)
    graph.add_edge("twice", "b", bytes=4)
    assert IndexedGraph.of(graph).keepers == [{1}, {2}, {3}]
    graph.edges["twice", "b"]["unsaved"] = True
    assert IndexedGraph.of(graph).keepers == [set(), set(), set()]
