"""Orders by bottom level: levels by hand, and orders that keep every dependency."""

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import branches, chain, cluster_of, graph_of
from place.strategies import clusters, layer_graphs

from baechi.place.bottom_level import bottom_level_order
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph


def order_of(graph: LayerGraph, device_of: dict[str, int], cluster: Cluster) -> list[str]:
    problem = Problem(graph, cluster)
    names = problem.indexed.names
    places = [device_of.get(names[members[0]], 0) for members in problem.indexed.members]
    return [names[layer] for layer in bottom_level_order(problem, places)]


def side_by_side(**seconds: float) -> LayerGraph:
    """`a` before `b`, which has 4 bytes of it, and `c` beside them."""
    return graph_of({name: {"forward_s": seconds[name]} for name in "abc"}, [("a", "b", 4)])


def test_longest_way_first() -> None:
    """Levels on one device: a 1 + 2, b 2, c 2.5."""
    assert order_of(side_by_side(a=1, b=2, c=2.5), {}, cluster_of(99)) == ["a", "c", "b"]
    assert order_of(side_by_side(a=1, b=2, c=3.5), {}, cluster_of(99)) == ["c", "a", "b"]


def test_equals_in_topological_order() -> None:
    """Equal levels: the first in topological order."""
    assert order_of(side_by_side(a=1, b=2, c=3), {}, cluster_of(99)) == ["a", "c", "b"]
    assert order_of(side_by_side(a=0, b=0, c=0), {}, cluster_of(99)) == ["a", "b", "c"]


def test_travel_counts() -> None:
    """With `b` elsewhere the way from `a` is 4 longer: 1 + 4 + 2 and 6; together it is 3 and 6."""
    graph, cluster = side_by_side(a=1, b=2, c=6), cluster_of(99, 99)
    assert order_of(graph, {}, cluster) == ["c", "a", "b"]
    assert order_of(graph, {"b": 1}, cluster) == ["a", "c", "b"]


def test_speed_counts() -> None:
    """`c` on a device of twice the speed takes half as long."""
    graph, cluster = side_by_side(a=1, b=2, c=5), cluster_of(99, 99, speeds=(1, 2))
    assert order_of(graph, {}, cluster) == ["c", "a", "b"]
    assert order_of(graph, {"c": 1}, cluster) == ["a", "c", "b"]


def test_training_counts_both_ways() -> None:
    """In training forward and backward count, and the way back: 1 + 8 + 2 and 6 + 4."""
    graph = graph_of(
        {"a": {"forward_s": 1}, "b": {"forward_s": 2}, "c": {"forward_s": 6, "backward_s": 4}},
        [("a", "b", 4)],
        training=True,
    )
    cluster = cluster_of(99, 99)
    assert order_of(graph, {"b": 1}, cluster) == ["a", "c", "b"]
    graph.nodes["c"]["backward_s"] = 6
    assert order_of(graph, {"b": 1}, cluster) == ["c", "a", "b"]


def test_order_only() -> None:
    """An edge that only orders is part of the way, without travel: 1 + 2 against 2.5 and 3.5."""
    for c, expected in ((2.5, ["a", "c", "b"]), (3.5, ["c", "a", "b"])):
        graph = side_by_side(a=1, b=2, c=c)
        graph.edges["a", "b"].update(order_only=True)
        assert order_of(graph, {"b": 1}, cluster_of(99, 99)) == expected


def test_longest_branch_first() -> None:
    """The branch whose rest is longest goes on first."""
    graph = branches(width=2, depth=2)
    graph.nodes["b1.1"]["forward_s"] = 5
    assert order_of(graph, {}, cluster_of(999)) == ["fork", "b1.0", "b1.1", "b0.0", "b0.1", "join"]


def test_chain() -> None:
    """A chain has one order."""
    assert order_of(chain(5), {"l2": 1}, cluster_of(99, 99)) == [f"l{i}" for i in range(5)]


@given(layer_graphs(pins=False), clusters(), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_topological(graph: LayerGraph, cluster: Cluster, data: st.DataObject) -> None:
    """Each layer once, behind all it depends on, wherever the groups lie."""
    problem = Problem(graph, cluster)
    some = st.integers(0, len(cluster) - 1)
    device_of = [data.draw(some) for _ in problem.indexed.members]
    order = [problem.indexed.names[layer] for layer in bottom_level_order(problem, device_of)]
    assert sorted(order) == sorted(graph.placed())
    place = {name: index for index, name in enumerate(order)}
    assert all(place[a] < place[b] for a, b in graph.edges if a in place)
