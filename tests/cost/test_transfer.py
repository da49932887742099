"""What travels: tensors, not edges."""

import pytest
from place.graphs import graph_of

from baechi.cost.transfer import Tensor, link_table, tensors, transfer_s
from baechi.records import Cluster, Device, Link


@pytest.mark.parametrize(
    ("size_bytes", "seconds"), [(0, 0.5), (4, 2.5), (10**12, 5e11 + 0.5)], ids=["empty", "small", "huge"]
)
def test_transfer_s(size_bytes: int, seconds: float) -> None:
    """Latency, and bytes over the rate."""
    assert transfer_s(Link(0.5, 2.0), size_bytes) == seconds


def test_infinitely_fast_link() -> None:
    """A link without a limit takes no time."""
    assert transfer_s(Link(0.0, float("inf")), 10**12) == 0


def test_one_tensor_for_all_readers() -> None:
    """Edges without an id are one tensor of their source; the largest edge counts."""
    graph = graph_of({"a": {}, "b": {}, "c": {}}, [("a", "b", 3), ("a", "c", 5)])
    assert tensors(graph) == [Tensor("a", 5, 5, ("b", "c"), graded=("b", "c"), keepers=("b", "c"))]


def test_ids_tell_tensors_apart() -> None:
    """Edges with the same id are one tensor, whatever else leaves their source."""
    edges = [("a", n, {"bytes": 4, "tensor": t}) for n, t in (("b", "0"), ("c", "1"), ("d", "0"))]
    graph = graph_of({name: {} for name in "abcd"}, edges)
    assert tensors(graph) == [
        Tensor("a", 4, 4, ("b", "d"), graded=("b", "d"), keepers=("b", "d")),
        Tensor("a", 4, 4, ("c",), graded=("c",), keepers=("c",)),
    ]


def test_ids_as_json_gives_them_back() -> None:
    """An id that was a tuple is a list in a file, and still an id."""
    edges = [("a", name, {"bytes": 4, "tensor": [0, 1]}) for name in "bc"]
    assert tensors(graph_of({name: {} for name in "abc"}, edges)) == [
        Tensor("a", 4, 4, ("b", "c"), graded=("b", "c"), keepers=("b", "c"))
    ]


def test_order_only_carries_nothing() -> None:
    """An edge that only orders is no tensor; a data edge without bytes is an empty one."""
    graph = graph_of({name: {} for name in "abc"}, [("a", "b", {"order_only": True}), ("a", "c")])
    assert tensors(graph) == [Tensor("a", 0, 0, ("c",), graded=("c",), keepers=("c",))]


def test_fractions_are_rounded_up() -> None:
    """Graphs of other worlds may have fractions of bytes."""
    assert tensors(graph_of({"a": {}, "b": {}}, [("a", "b", 2.25)]))[0].size_bytes == 3


def test_link_table() -> None:
    """Links by index, the host after the last device."""
    fast, slow, up = Link(0.0, 9.0), Link(0.0, 1.0), Link(1.0, 1.0)
    devices = (Device("x"), Device("y"))
    table = link_table(Cluster(devices, {("x", "y"): fast, ("host", "y"): up}, slow))
    assert (table[0][1], table[1][0], table[2][1], table[2][0]) == (fast, slow, up, slow)
