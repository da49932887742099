"""Lower bounds of a step, each where it binds."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import BYTE_A_SECOND, FREE, chain, cluster_of, graph_of
from place.strategies import clusters, layer_graphs

from baechi.errors import PlacementError
from baechi.records import Cluster, Device, LayerGraph
from baechi.simulate import least_peak_bytes, shortest_step_s, simulate
from baechi.verbs.plans import place


def test_path() -> None:
    """Layers behind each other take their sum, on however many devices; backward on top."""
    assert shortest_step_s(chain(6), cluster_of(*[999] * 9)) == 6
    assert shortest_step_s(chain(6, training=True), cluster_of(*[999] * 9)) == 18


@pytest.mark.parametrize(("speeds", "seconds"), [((1, 1), 6), ((1, 3), 3), ((2, 2), 3)])
def test_work(speeds: tuple[float, ...], seconds: float) -> None:
    """Layers beside each other share the devices, the fast one taking more."""
    graph = graph_of({f"l{index}": {"forward_s": 1} for index in range(12)})
    assert shortest_step_s(graph, cluster_of(1, 1, speeds=speeds)) == pytest.approx(seconds)


def test_group() -> None:
    """Layers that share a device run one after the other."""
    graph = graph_of({f"l{index}": {"forward_s": 1, "colocate": 1} for index in range(12)})
    assert shortest_step_s(graph, cluster_of(*[1] * 6)) == 12


def test_times_by_kind() -> None:
    """Each layer counts with its fastest device."""
    devices = (Device("d0", kind="x"), Device("d1", kind="y"))
    graph = graph_of(
        {"a": {"forward_s": {"x": 1, "y": 5}}, "b": {"forward_s": {"x": 5, "y": 1}}}, [("a", "b", 0)]
    )
    assert shortest_step_s(graph, Cluster(devices, link=BYTE_A_SECOND)) == 2


def test_nothing() -> None:
    """An empty graph takes no time."""
    assert shortest_step_s(graph_of({}), cluster_of(1)) == 0


@pytest.mark.parametrize(("memory", "forward_s"), [(999, 6), (59, 6 + 4)])
def test_forced_cut(memory: int, forward_s: float) -> None:
    """A chain that no device holds is cut once at least, both ways; cutting at an input is none."""
    assert shortest_step_s(chain(6), cluster_of(memory, memory)) == forward_s
    training = chain(6, training=True)
    memory = 999 if forward_s == 6 else 100
    assert shortest_step_s(training, cluster_of(memory, memory)) == 18 + 2 * (forward_s - 6)


def test_cheapest_cut() -> None:
    """It is cut where the path through the cut is shortest, and over the fastest link."""
    nodes = {"a": {"forward_s": 5, "param_bytes": 9}, "b": {"forward_s": 3}, "c": {"param_bytes": 9}}
    edges = [("a", "b", 7), ("b", "c", 2), ("a", "d", {"bytes": 2, "tensor": 1})]
    graph = graph_of({**nodes, "d": {"forward_s": 1}}, edges)
    assert shortest_step_s(graph, cluster_of(10, 10)) == 8  # a to d takes 5 + 2 + 1, as long as the path
    graph.nodes["d"]["forward_s"] = 2
    assert shortest_step_s(graph, cluster_of(10, 10)) == 9
    assert shortest_step_s(graph, cluster_of(10, 10, links={("d1", "d0"): FREE})) == 8


def test_parts_need_no_cut() -> None:
    """What does not hang together is not cut, and alone on a device it may fit."""
    graph = graph_of(
        {name: {"forward_s": 1, "param_bytes": 6} for name in "abcd"}, [("a", "b", 5), ("c", "d", 5)]
    )
    assert shortest_step_s(graph, cluster_of(12, 12)) == 2
    assert shortest_step_s(graph, cluster_of(11, 11, 11, 11)) == 7


def test_least_peak() -> None:
    """An equal share, rounded up, or the largest group; nothing for nothing."""
    nodes = {f"l{index}": {"param_bytes": 10} for index in range(5)}
    assert least_peak_bytes(graph_of(nodes), cluster_of(1, 1)) == 25
    assert least_peak_bytes(graph_of(nodes), cluster_of(1, 1, 1)) == 17
    grouped = {name: {**data, "colocate": 1 if name < "l3" else None} for name, data in nodes.items()}
    assert least_peak_bytes(graph_of(grouped), cluster_of(1, 1, 1)) == 30
    assert least_peak_bytes(graph_of({}), cluster_of(1)) == 0


@given(layer_graphs(pins=False), clusters(), st.sampled_from(["m-topo", "m-etf", "chain", "random:1"]))
@settings(max_examples=examples(200), deadline=None)
def test_no_plan_is_below(graph: LayerGraph, cluster: Cluster, placer: str) -> None:
    """Whatever is placed takes as long and is as full."""
    try:
        plan = place(graph, cluster, placer)
    except PlacementError:
        return
    timeline = simulate(plan)
    assert timeline.makespan_s >= shortest_step_s(graph, cluster) * (1 - 1e-9)
    assert max(timeline.peak_bytes.values()) >= least_peak_bytes(graph, cluster)


def test_host() -> None:
    """A host that is slower than the devices decides; in backward each device has one."""
    cluster = replace(cluster_of(*[999] * 2), launch_s=1)
    slow = {"host_forward_s": 9, "host_backward_s": 5}
    nodes = {name: {"forward_s": 1, "backward_s": 1, **slow} for name in "abcd"}
    assert shortest_step_s(graph_of(nodes), cluster) == 4 * 9 - 1
    assert shortest_step_s(graph_of(nodes, training=True), cluster) == 4 * 9 - 1 + 2 * 5 - 1
    path = graph_of(nodes, [("a", "b", 0), ("b", "c", 0), ("c", "d", 0)], training=True)
    assert shortest_step_s(path, cluster) == 4 * 9 - 1 + 4 * 5 - 1
    assert place(path, cluster, "single").timeline.makespan_s == pytest.approx(4 * 9 - 1 + 4 * 5 - 1, abs=1)


@given(
    layer_graphs(pins=False),
    clusters(memory=st.just(10**6)),  # where it is short, placing takes longer than all else here
    st.sampled_from(["single", "m-etf", "random:1", "random:2"]),
)
@settings(max_examples=examples(120), deadline=None)
def test_no_host_is_sooner(graph: LayerGraph, cluster: Cluster, placer: str) -> None:
    """The same of a host that takes as long as the devices, or longer; there is room."""
    chance, cluster = Random(0), replace(cluster, launch_s=0.1)
    for name in graph.placed():
        for phase in ("forward", "backward"):
            graph.nodes[name][f"host_{phase}_s"] = chance.choice([0.0, 0.1, 0.2, 3.0])
    plan = place(graph, cluster, placer)
    assert simulate(plan).makespan_s >= shortest_step_s(graph, cluster) * (1 - 1e-9)
