"""The chain placer: cuts against all cuts there are, and what pins, groups and memory do to them."""

from itertools import combinations_with_replacement, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from matrix import examples
from place.checker import check
from place.graphs import FREE, branches, cluster_of, graph_of
from place.graphs import chain as chain_graph
from place.strategies import clusters, layer_graphs

from baechi.errors import PlacementError
from baechi.place.placers.chain import chain, cut
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph, Link

NEVER = float("inf")


def random_problem(seed: int, training: bool) -> tuple[LayerGraph, Cluster]:
    """Up to 8 layers, some in groups or pinned, up to 3 devices alike in nothing."""
    chance = Random(seed)
    names = [f"l{i}" for i in range(chance.randint(1, 8))]
    count = chance.randint(1, 3)
    nodes: dict[str, dict[str, Any]] = {}
    for name in names:
        nodes[name] = {"forward_s": chance.randint(0, 9), "param_bytes": chance.randint(0, 30)}
        nodes[name] |= {"temp_bytes": chance.randint(0, 10), "backward_s": chance.randint(0, 9)}
        if chance.random() < 0.2:
            nodes[name]["colocate"] = chance.choice("gh")
        elif chance.random() < 0.15:
            nodes[name]["pin"] = f"d{chance.randrange(count)}"
    edges = [
        (one, other, chance.randint(0, 8))
        for place, one in enumerate(names)
        for other in names[place + 1 :]
        if chance.random() < 0.4
    ]
    cluster = cluster_of(
        *[chance.choice([60, 120, 1000]) for _ in range(count)],
        speeds=[chance.choice([0.5, 1.0, 2.0]) for _ in range(count)],
        links={
            (f"d{i}", f"d{j}"): Link(chance.choice([0.0, 2.0]), chance.choice([1.0, 4.0]))
            for i in range(count)
            for j in range(count)
        },
    )
    return graph_of(nodes, edges, training=training), cluster


def cost_s(graph: LayerGraph, cluster: Cluster, problem: Problem, device_of: list[int]) -> float:
    """Work, and for every cut all tensors that cross it; endless if a pin or a limit is broken."""
    phases = ("forward_s", "backward_s") if graph.training else ("forward_s",)
    groups = [[problem.indexed.names[layer] for layer in members] for members in problem.indexed.members]
    number = {name: group for group, members in enumerate(groups) for name in members}
    total = 0.0
    for device, profile in enumerate(cluster.devices):
        mine = [group for group, home in enumerate(device_of) if home == device]
        layers = [name for group in mine for name in groups[group]]
        if any(graph.nodes[name].get("pin") not in (None, profile.name) for name in layers):
            return NEVER
        parts = [problem.group_bytes[group] for group in mine]
        top = max([max(part.forward_bytes, part.backward_bytes) for part in parts], default=0)
        if sum(part.permanent_bytes for part in parts) + top > profile.memory_bytes:
            return NEVER
        total += sum(graph.nodes[name][phase] / profile.speed for name in layers for phase in phases)
    for place in range(1, len(groups)):
        if device_of[place - 1] == device_of[place]:
            continue
        for source in number:
            out = [(number[t], data["bytes"]) for _, t, data in graph.out_edges(source, data=True)]
            ends = [number[source], *[group for group, _ in out]]
            if out and min(ends) < place <= max(ends):
                total += mean_travel_s(cluster, max(size for _, size in out), graph.training)
    return total


def mean_travel_s(cluster: Cluster, size: int, training: bool) -> float:
    """On average over neighbours, there, and in training back."""
    names, seconds = cluster.names, []
    for one, other in pairwise(names):
        ways = [(one, other), (other, one)] if training else [(one, other)]
        links = [cluster.link_between(*way) for way in ways]
        seconds.append(sum(link.latency_s + size / link.bytes_per_s for link in links))
    return sum(seconds) / len(seconds)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("block", range(5))
def test_best_of_all_cuts(block: int, training: bool) -> None:
    """No contiguous cut is cheaper, and where none is allowed there is none."""
    refused = 0
    for seed in range(block * 40, block * 40 + 40):
        graph, cluster = random_problem(seed, training)
        try:
            problem = Problem(graph, cluster)
        except PlacementError:
            continue
        groups = len(problem.indexed.members)
        ways = combinations_with_replacement(range(len(cluster)), groups)
        least = min(cost_s(graph, cluster, problem, list(way)) for way in ways)
        found = cut(problem)
        refused += found is None
        assert (found is None) == (least == NEVER)
        if found is not None:
            assert found == sorted(found)
            assert cost_s(graph, cluster, problem, found) == pytest.approx(least)
    assert 0 < refused < 30


def test_cuts_where_least_travels() -> None:
    """Of the cuts that memory allows, the one that the small tensor crosses."""
    nodes = {f"l{i}": {"forward_s": 1, "param_bytes": 10} for i in range(5)}
    edges = [("l0", "l1", 9), ("l1", "l2", 2), ("l2", "l3", 7), ("l3", "l4", 1)]
    plan = chain(graph_of(nodes, edges), cluster_of(40, 40))
    check(plan)
    assert plan.order_on("d0") == ("l0", "l1", "l2", "l3")
    plan = chain(graph_of(nodes, edges), cluster_of(30, 32))
    check(plan)
    assert plan.order_on("d0") == ("l0", "l1")


def test_fast_device_gets_all() -> None:
    """A device that is worth the way gets the whole chain; the others stay empty."""
    plan = chain(chain_graph(5), cluster_of(999, 999, 999, speeds=(1, 1, 9), link=FREE))
    assert plan.devices_used == ("d2",)


def test_tied_ends() -> None:
    """A group stands where its first layer does, and takes the last one along."""
    layer: dict[str, Any] = {"forward_s": 1, "param_bytes": 10}
    nodes = {name: dict(layer) for name in ("embed", "l0", "l1", "l2", "head")}
    for name in ("embed", "head"):
        nodes[name]["colocate"] = "tied"
    names = list(nodes)
    graph = graph_of(nodes, [(a, b, 1) for a, b in pairwise(names)])
    plan = chain(graph, cluster_of(31, 31))
    check(plan)
    assert plan.device_of["embed"] == plan.device_of["head"] == "d0"
    assert not plan.candidates


def test_pins() -> None:
    """A pin in the middle cuts; one against the order of devices is kept all the same."""
    graph = chain_graph(4)
    graph.nodes["l2"]["pin"] = "d1"
    plan = chain(graph, cluster_of(999, 999, 999))
    check(plan)
    assert not plan.candidates
    graph.nodes["l0"]["pin"] = "d2"
    plan = chain(graph, cluster_of(999, 999, 999))
    check(plan)
    assert "placed by" in plan.candidates[0].note


def test_more_devices_than_groups() -> None:
    """Twelve devices, two layers."""
    plan = chain(chain_graph(2), cluster_of(*[12] * 3, *[999] * 9))
    check(plan)
    assert len(plan.devices_used) <= 2


def test_received_bytes_count() -> None:
    """A cut that leaves no room for what is received is not the last word."""
    nodes = {f"l{i}": {"param_bytes": 25, "output_bytes": 5, "saved_bytes": 5} for i in range(6)}
    graph = graph_of(nodes, [(f"l{i}", f"l{i + 1}", 5) for i in range(5)], training=True)
    plan = chain(graph, cluster_of(100, 100, 100))
    check(plan)
    assert len(plan.devices_used) > 1


def test_many_groups() -> None:
    """Above 400 groups cuts are tried at 400 places, and every device still holds its stretch."""
    plan = chain(chain_graph(900), cluster_of(*[5000] * 3))
    assert len(plan.devices_used) > 1
    homes = [plan.device_of[f"l{i}"] for i in range(900)]
    assert homes == sorted(homes)


@pytest.mark.parametrize("training", [False, True])
def test_branches(training: bool) -> None:
    """Branches are cut as if they ran one after the other."""
    check(chain(branches(4, 3, training=training), cluster_of(90, 90, 90)))


@given(layer_graphs(), clusters())
@settings(max_examples=examples(100), deadline=None)
def test_same_again(graph: LayerGraph, cluster: Cluster) -> None:
    """The same input gives the same plan."""
    try:
        plan = chain(graph, cluster)
    except PlacementError:
        return
    again = chain(graph, cluster)
    assert (plan.order, plan.device_of) == (again.order, again.device_of)
