"""Favourite children by hand, and the rules of rounding."""

from typing import Any

import pytest
from place.graphs import chain, graph_of
from place.listing.timed import favourite_names, random_dag, timed


def test_favourites_of_a_chain() -> None:
    """x is 0 along a chain: each layer is followed by the next without a transfer."""
    assert favourite_names(chain(4), 0.0) == {"l0": "l1", "l1": "l2", "l2": "l3"}


@pytest.mark.parametrize("edges", [[("s", "a", 2), ("s", "b", 2)], [("a", "s", 2), ("b", "s", 2)]])
def test_equal_branches(edges: list[tuple[str, str, int]]) -> None:
    """Equal children, or parents, share: x is 1/2 for both, so nobody is a favourite up to there.

    At 1/2 both edges round to a favourite (P9 of the original: it took both, and one at random
    won). Here there is one, the first.
    """
    graph = timed({"s": 1, "a": 3, "b": 3}, edges)
    assert favourite_names(graph) == favourite_names(graph, 0.49) == {}
    for threshold in (0.5, 1.0):
        assert favourite_names(graph, threshold) == {edges[0][0]: edges[0][1]}


def test_unequal_fork() -> None:
    """2 + 2 x_a = 1 + 2 (1 - x_a), so x_a is 1/4, x_b 3/4; a only, also where both would do."""
    graph = timed({"s": 1, "a": 2, "b": 1}, [("s", "b", 2), ("s", "a", 2)])
    assert favourite_names(graph, 0.24) == {}
    assert favourite_names(graph, 0.25) == favourite_names(graph, 0.8) == {"s": "a"}


def test_unequal_join() -> None:
    """The join is the favourite of the parent that ends last: 5 + 0 and 1 + 2."""
    graph = timed({"a": 1, "b": 5, "t": 1}, [("a", "t", 2), ("b", "t", 2)])
    assert favourite_names(graph, 0.0) == favourite_names(graph, 1.0) == {"b": "t"}


def test_diamond() -> None:
    """The long side keeps both its edges short: 1 + 0 + 9 + 0 + 1; the short side pays 2 and 2."""
    seconds = {"s": 1.0, "a": 1.0, "b": 9.0, "t": 1.0}
    graph = timed(seconds, [("s", "a", 2), ("s", "b", 2), ("a", "t", 2), ("b", "t", 2)])
    assert favourite_names(graph, 0.0) == favourite_names(graph, 1.0) == {"s": "b", "b": "t"}


def test_largest_transfer_without_hurry() -> None:
    """Where the makespan leaves the choice, the child with the larger transfer is the favourite."""
    nodes: dict[str, dict[str, Any]] = {"long": {"forward_s": 100}}
    edges = []
    for fork in range(12):
        nodes |= {f"{name}{fork}": {"forward_s": 1} for name in "sab"}
        for size, name in ((5, "a"), (6, "b")):
            edges.append((f"s{fork}", f"{name}{fork}", {"bytes": size, "tensor": name}))
    expected = {f"s{fork}": f"b{fork}" for fork in range(12)}
    assert favourite_names(graph_of(nodes, edges)) == expected


def test_p8_no_stale_parent() -> None:
    """A favourite that was overwritten used to leave its parent behind, and others lost theirs."""
    seconds = {"a": 3.0, "b": 1.0, "c": 2.0, "d": 1.0}
    graph = timed(seconds, [("a", "c", 1), ("b", "c", 1), ("b", "d", 1)])
    for threshold in (0.0, 0.5, 1.0):
        assert favourite_names(graph, threshold) == {"a": "c", "b": "d"}


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5, 1.0])
def test_p9_one_favourite_each(threshold: float) -> None:
    """At most one favourite child, of one parent, and only along tensors."""
    for seed in range(75 * round(threshold * 10), 75 * round(threshold * 10) + 75):
        graph = random_dag(seed)
        found = favourite_names(graph, threshold)
        assert len(set(found.values())) == len(found)
        assert all(graph.has_edge(parent, child) for parent, child in found.items())
