"""m-SCT: devices that wait for a favourite, and solvers."""

import logging
from collections.abc import Iterator
from random import Random
from typing import Any

import networkx as nx
import pulp
import pytest
from benches.models.layered import cluster_for, layered
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.checker import check
from place.graphs import CLUSTERS, FREE, HAND_MADE, branches, chain, cluster_of, graph_of, late_groups
from place.listing.timed import TWO, favourite_names, random_dag
from place.placers.naive_sct import NaiveSCT
from place.strategies import clusters, layer_graphs

from baechi.place import solver
from baechi.place.ledger import open_ledger
from baechi.place.listing import favourite_program
from baechi.place.listing.favourites import favourites
from baechi.place.listing.start_earliest import Listing
from baechi.place.listing.waiting_devices import Awake
from baechi.place.placers.m_etf import ends_group_first, m_etf
from baechi.place.placers.m_sct import m_sct
from baechi.place.problem import Problem
from baechi.records import Cluster, Device, LayerGraph, Link
from baechi.simulate import simulate


def waiting(**more: dict[str, Any]) -> LayerGraph:
    """`a` and `b` are free to start; `f` follows both, `g` follows `f`; `z` follows `a`."""
    nodes: dict[str, dict[str, Any]] = {
        "a": {"forward_s": 1},
        "b": {"forward_s": 1},
        "f": {"forward_s": 5},
        "g": {"forward_s": 20},
        "z": {"forward_s": 10},
    }
    edges: list[tuple[Any, ...]] = [
        ("a", "f", {"bytes": 20, "tensor": "0"}),
        ("b", "f", {"bytes": 2, "tensor": "2"}),
        ("f", "g", 9),
    ]
    edges += [("a", "z", {"bytes": 4, "tensor": "1"})]
    for name, data in more.items():
        nodes[name] = nodes.get(name, {}) | data
    return graph_of(nodes, edges)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan"), float("inf")])
def test_bad_threshold(threshold: float) -> None:
    """A threshold that is no part of one is refused."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        m_sct(chain(), TWO, threshold=threshold)


def test_nothing_to_follow() -> None:
    """One device, no tensors, or all in one group: there are no favourites, and a plan."""
    group = {"forward_s": 1, "colocate": "g"}
    tied = graph_of({"a": dict(group), "b": dict(group)}, [("a", "b", 1)])
    assert favourite_names(tied) == favourite_names(graph_of({"a": {}, "b": {}})) == {}
    check(m_sct(tied, TWO))
    one = m_sct(branches(), cluster_of(1000))
    check(one)
    assert one.devices_used == ("d0",)


@given(layer_graphs(pins=False), clusters())
@settings(max_examples=examples(200), deadline=None)
def test_is_sct(graph: LayerGraph, cluster: Cluster) -> None:
    """With room and without groups it schedules as the definition says, ties included."""
    nx.set_node_attributes(graph, None, "colocate")
    _compare(graph, cluster)


def test_urgent_elsewhere() -> None:
    """`l0` ends on `d0` at 8, which waits for `l1`: 16 on both devices, since inputs take 8 to arrive.

    `l2` is urgent on `d0` at 16, but runs on `d1` at 8. So `d0` runs `l1`, its favourite, not `d1`.
    """
    nodes: dict[str, dict[str, Any]] = {name: {"kind": "input"} for name in ("input:0", "input:1")}
    nodes |= {"l0": {"output_bytes": 1}, "l1": {}, "l2": {"forward_s": 0.25}}
    edges = [("input:0", "l1", 1), ("input:0", "l2", 1), ("input:1", "l0", 1), ("input:1", "l1", 1)]
    graph = graph_of(nodes, [*edges, ("l0", "l1", 0), ("l0", "l2", 0)])
    cluster = Cluster(cluster_of(9, 9).devices, link=Link(bytes_per_s=0.125), reception="serial")
    _compare(graph, cluster)
    assert m_sct(graph, cluster).device_of == {"l0": "d0", "l1": "d0", "l2": "d1"}


@pytest.mark.parametrize("seed", range(8))
def test_is_sct_of_layers(seed: int) -> None:
    """The same where devices wait often."""
    graph = layered(50, seed=seed, travel=(0.3, 1.0, 3.0)[seed % 3], training=seed % 2 == 1)
    _compare(graph, cluster_for(graph, 3))


def _compare(graph: LayerGraph, cluster: Cluster) -> None:
    devices = tuple([Device(d.name, memory_bytes=10**12, speed=d.speed) for d in cluster.devices])
    roomy = Cluster(devices, cluster.links, cluster.link, cluster.reception)
    plan = m_sct(graph, roomy)
    naive = NaiveSCT(graph, roomy, favourite_names(graph, cluster=roomy))
    assert [(name, plan.device_of[name]) for name in plan.order] == naive.order


def test_waits() -> None:
    """The device of `a` is free at 1 and waits until 3 for what `b` made; elsewhere `f` would get `a` at 21.

    m-ETF runs `z` there at once, up to 11; then `f` starts there, and `g` ends at 36. m-SCT: `f` 3
    to 8, `g` to 28; `z` on the other one, 5 to 15.
    """
    graph = waiting()
    assert favourite_names(graph) == {"a": "f", "f": "g"}
    plan = m_sct(graph, TWO)
    check(plan)
    assert simulate(plan).makespan_s == 28
    assert simulate(m_etf(graph, TWO)).makespan_s == 36
    assert plan.device_of["a"] == plan.device_of["f"] == plan.device_of["g"] != plan.device_of["z"]


def test_does_not_wait_for_what_has_not_run() -> None:
    """A favourite is ready when all that it depends on has ended: `z` runs while `b` does, as in m-ETF."""
    graph = waiting(b={"forward_s": 3})
    plan = m_sct(graph, TWO)
    check(plan)
    assert simulate(plan).makespan_s == simulate(m_etf(graph, TWO)).makespan_s
    assert plan.order.index("z") < plan.order.index("f")


def test_waits_again() -> None:
    """At 2, `f` could start at 4 beside `b` and at 10 beside `a`. Then `y` keeps `b`'s device until 22.

    So the device of `a` waits again, though `z` could start there at 3.
    """
    seconds = {"a": 1, "b": 2, "y": 20, "f": 1, "z": 20}
    nodes = {name: {"forward_s": each_s} for name, each_s in seconds.items()}
    edges: list[tuple[Any, ...]] = [("a", "f", {"bytes": 3, "tensor": "0"})]
    for reader, size in (("f", 8), ("y", 5), ("z", 1)):
        edges.append(("b", reader, {"bytes": size, "tensor": reader}))
    problem = Problem(graph_of(nodes, edges), TWO)
    a, f = (problem.indexed.names.index(name) for name in "af")
    ledger = open_ledger(problem)
    listing = Listing(problem, ledger, ends_group_first, Awake({a: f}, 2))
    assert listing.fill()
    assert "".join(problem.indexed.names[layer] for layer in listing.order) == "abyfz"
    assert ledger.device_of == [0, 1, 1, 0, 0]


def test_urgent() -> None:
    """`u` could start anywhere at 1, and `f` at 3, so the device that waits runs it first."""
    graph = waiting(u={"forward_s": 2}, z={"pin": "d1"})
    plan = m_sct(graph, TWO)
    check(plan)
    assert plan.order_on("d0")[:3] == ("a", "u", "f")
    assert simulate(plan).makespan_s == 28


def test_favourite_without_room() -> None:
    """A device does not wait for a favourite that it cannot hold."""
    graph = waiting(f={"param_bytes": 100})
    plan = m_sct(graph, cluster_of(50, 1000))
    check(plan)
    assert not plan.candidates
    assert (plan.device_of["a"], plan.device_of["f"], plan.device_of["z"]) == ("d0", "d1", "d0")
    assert simulate(plan).makespan_s == simulate(m_etf(graph, cluster_of(50, 1000))).makespan_s == 46


def test_favourite_in_a_group_elsewhere() -> None:
    """A device does not wait for a favourite whose group lies on another one."""
    graph = waiting(f={"colocate": "g"}, b={"colocate": "g", "pin": "d1"})
    plan = m_sct(graph, TWO)
    check(plan)
    assert (plan.device_of["f"], plan.device_of["z"]) == ("d1", "d0")


def test_groups_spread() -> None:
    """Groups with light first layers are placed as m-ETF does."""
    plan = m_sct(late_groups(4, heavy_s=10), cluster_of(*[1000] * 4, link=FREE))
    assert simulate(plan).makespan_s == 10


@pytest.mark.parametrize("training", [False, True])
def test_zero_times(training: bool) -> None:
    """Layers without times, and transfers that take none, leave a program of zeros."""
    edges = [(source, target, 0) for source, target in ("ab", "ac", "bd", "cd")]
    graph = graph_of({name: {} for name in "abcd"}, edges, training=training)
    for link in (FREE, None):
        check(m_sct(graph, TWO if link is None else cluster_of(99, 99, link=link)))


@given(layer_graphs(), clusters(), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=examples(150), deadline=None)
def test_any_threshold(graph: LayerGraph, cluster: Cluster, threshold: float) -> None:
    """With room for everything a plan is a plan, at any threshold, and the same when made again."""
    roomy = cluster_of(*[10**6] * len(cluster), speeds=[d.speed for d in cluster.devices], link=cluster.link)
    plan = m_sct(graph, roomy, threshold=threshold)
    check(plan)
    again = m_sct(graph, roomy, threshold=threshold)
    assert (plan.order, plan.device_of) == (again.order, again.device_of)


@pytest.mark.parametrize("seed", range(12))
def test_order_of_edges(seed: int) -> None:
    """The order in which edges were added changes nothing."""
    graph = random_dag(seed)
    edges = list(graph.edges(data=True))
    Random(seed).shuffle(edges)
    shuffled: nx.DiGraph[str] = nx.DiGraph(**graph.graph)
    shuffled.add_nodes_from(graph.nodes(data=True))
    shuffled.add_edges_from(edges)
    other = LayerGraph.from_networkx(shuffled)
    assert favourite_names(graph, 0.5) == favourite_names(other, 0.5)
    one, two = m_sct(graph, TWO), m_sct(other, TWO)
    assert (one.order, one.device_of) == (two.order, two.device_of)


@pytest.mark.parametrize("most_edges", [2_000, 50])
def test_solvers_agree(monkeypatch: pytest.MonkeyPatch, most_edges: int) -> None:
    """HiGHS and CBC choose the same favourites, in one program or piece by piece."""
    monkeypatch.setattr(favourite_program, "MOST_EDGES", most_edges)
    cases = [(random_dag(seed, 20), TWO) for seed in range(6)]
    for seed in range(6):
        graph = layered(100, seed=seed, travel=(0.5, 2.0, 5.0)[seed % 3])
        cases.append((graph, cluster_for(graph, 4)))
    found = [favourite_names(graph, cluster=cluster) for graph, cluster in cases]
    monkeypatch.setattr(solver, "_has_highs", lambda: False)
    assert [favourite_names(graph, cluster=cluster) for graph, cluster in cases] == found


def test_program_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of many edges is solved piece by piece: the rules hold, and the plan says so."""
    graph = layered(300, travel=2.0)
    problem = Problem(graph, cluster_for(graph, 4, slack=3.0))
    whole = favourites(problem)
    assert whole.programs == 1
    assert not m_sct(graph, problem.cluster).candidates
    monkeypatch.setattr(favourite_program, "MOST_EDGES", 100)
    found = favourites(problem)
    assert found.programs == -(-graph.number_of_edges() // 100)
    assert len(set(found.child_of.values())) == len(found.child_of) > 0.8 * len(whole.child_of)
    assert all(child in problem.followers[parent] for parent, child in found.child_of.items())
    plan = m_sct(graph, problem.cluster)
    check(plan)
    (candidate,) = plan.candidates
    assert f"in {found.programs} programs" in candidate.note


@pytest.fixture
def no_highs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if HiGHS were not installed."""
    solver._has_highs.cache_clear()
    monkeypatch.setattr(pulp.HiGHS, "available", lambda self: False)
    yield
    solver._has_highs.cache_clear()


@pytest.mark.usefixtures("no_highs")
def test_other_solver(caplog: pytest.LogCaptureFixture) -> None:
    """CBC takes over with one line in the log; the rules hold."""
    with caplog.at_level(logging.WARNING):
        for name in ("chain", "branches in training", "zero times", "tied ends", "pinned"):
            check(m_sct(HAND_MADE[name], CLUSTERS["two devices"]))
        for seed in range(5):
            found = favourite_names(random_dag(seed), 1.0)
            assert len(set(found.values())) == len(found)
        assert simulate(m_sct(waiting(), TWO)).makespan_s == 28
    (line,) = [record.getMessage() for record in caplog.records]
    assert "HiGHS is not installed" in line
    assert "CBC" in line
