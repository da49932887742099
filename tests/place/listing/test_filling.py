"""Devices that are filled one after the other."""

from hypothesis import given, settings
from hypothesis import strategies as st
from place.graphs import chain, cluster_of
from place.strategies import clusters, layer_graphs

from baechi.place.ledger import open_ledger
from baechi.place.listing.filling import Filling, filled
from baechi.place.listing.walk import walk
from baechi.place.task import Task
from baechi.records import Cluster, LayerGraph


@given(layer_graphs(), clusters(), st.integers(1, 60))
@settings(max_examples=300, deadline=None)
def test_filled_is_filling(graph: LayerGraph, cluster: Cluster, cap: int) -> None:
    """Where sums alone say that memory is kept, a ledger, asked of every layer, says the same."""
    task = Task(graph, cluster)
    device_of = filled(task, cap)
    if device_of is not None:
        ledger = open_ledger(task)
        assert walk(task, ledger, Filling(task, ledger, [cap] * len(cluster)).choose) is None
        assert ledger.device_of == device_of


def test_filled_gives_up() -> None:
    """Pins, groups that are left over, and memory that could be short are for the ledger."""
    graph = chain(6)
    assert filled(Task(graph, cluster_of(99, 99)), 60) == [0, 0, 0, 0, 1, 1]
    assert filled(Task(graph, cluster_of(99, 99)), 30) is None
    assert filled(Task(graph, cluster_of(50, 50)), 60) is None
    graph.nodes["l3"]["pin"] = "d1"
    assert filled(Task(graph, cluster_of(99, 99)), 60) is None
