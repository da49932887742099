"""Random placements: seeded, within memory, and on every device."""

from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.checker import check
from place.graphs import branches, chain, cluster_of, graph_of
from place.strategies import layer_graphs

from baechi.place.placers.random import RandomPlacer
from baechi.records import LayerGraph


@given(layer_graphs(), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=examples(200), deadline=None)
def test_every_device_is_used(graph: LayerGraph, devices: int, seed: int) -> None:
    """If there are groups enough that are not pinned."""
    plan = RandomPlacer(seed)(graph, cluster_of(*[10**6] * devices))
    pinned = sum(any(graph.nodes[name].get("pin") for name in members) for members in graph.groups().values())
    if len(graph.groups()) - pinned >= devices:
        assert len(plan.devices_used) == devices


def test_seeds_differ() -> None:
    """Equal seeds give equal plans, different seeds different ones."""
    graph, cluster = branches(5, 4), cluster_of(1000, 1000, 1000)
    plans = [tuple(RandomPlacer(seed)(graph, cluster).device_of.values()) for seed in (1, 1, 2, 3)]
    assert plans[0] == plans[1]
    assert len(set(plans)) == 3


def test_code_order() -> None:
    """Layers run in code order."""
    graph = chain(8)
    assert RandomPlacer(4)(graph, cluster_of(1000, 1000)).order == tuple(graph.placed())


def test_within_memory() -> None:
    """Where only one way fits, it is found, whatever the seed."""
    graph = graph_of({"a": {"param_bytes": 100}, "b": {"param_bytes": 50}, "c": {"param_bytes": 50}})
    for seed in range(20):
        check(plan := RandomPlacer(seed)(graph, cluster_of(100, 100)))
        assert plan.device_of["b"] == plan.device_of["c"] != plan.device_of["a"]


def test_small_device_is_used() -> None:
    """A device that only one group fits on gets that one."""
    graph = graph_of({f"l{i}": {"param_bytes": 50 if i else 5} for i in range(6)})
    for seed in range(20):
        assert RandomPlacer(seed)(graph, cluster_of(1000, 5)).order_on("d1") == ("l0",)
