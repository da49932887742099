"""`auto`: nearly the least of its candidates and of one device, within memory."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.checker import check
from place.graphs import CLUSTERS, FREE, HAND_MADE, branches, chain, cluster_of, graph_of, layered
from place.strategies import clusters, layer_graphs

from baechi.errors import PlacementError
from baechi.place.evaluation import Effort
from baechi.place.preference import EQUAL
from baechi.place.problem import Problem
from baechi.place.search import rounds
from baechi.records import Cluster, LayerGraph, Plan
from baechi.records.device import HostCosts
from baechi.simulate import Rehearsal, simulate
from baechi.verbs.plans import place

pytestmark = pytest.mark.default_cases(2)


@given(layer_graphs(), clusters(), st.sampled_from([0, 1, 2]))
@settings(max_examples=15, deadline=None)
def test_auto(graph: LayerGraph, cluster: Cluster, effort: Effort) -> None:
    """Within memory, nearly the least of its candidates and of one device, and the same again."""
    try:
        plan = place(graph, cluster, "auto", effort=effort)
    except PlacementError:
        with pytest.raises(PlacementError):
            place(graph, cluster, "single")
        return
    check(plan)
    step_s = simulate(plan).makespan_s
    peaks = dict(simulate(plan).peak_bytes)
    assert all(peaks[device.name] <= device.memory_bytes for device in cluster.devices)
    tried = [one for one in plan.candidates if one.step_s is not None]
    assert step_s <= EQUAL * min(one.step_s for one in tried if one.step_s is not None)
    named = [one for one in tried if plan.placer == f"auto ({one.placer})"]
    assert (step_s, peaks) in [(one.step_s, one.peak_bytes) for one in named]
    again = place(graph, cluster, "auto", effort=effort)
    assert (again.order, again.device_of) == (plan.order, plan.device_of)
    try:
        alone = place(graph, cluster, "single")
    except PlacementError:
        return
    assert step_s <= EQUAL * simulate(alone).makespan_s


def test_the_most_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, is no worse than less effort, and is the same again; in rounds a hundredth as long."""
    monkeypatch.setattr(rounds, "ESTIMATES", 24)
    graph, cluster = branches(3, 2), cluster_of(999, 999, 999, 999)
    usual, most, again = (place(graph, cluster, "auto", effort=effort) for effort in (1, "max", "max"))
    assert simulate(most).makespan_s <= EQUAL * simulate(usual).makespan_s
    assert (again.order, again.device_of) == (most.order, most.device_of)


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
@pytest.mark.parametrize("graph", HAND_MADE.values(), ids=HAND_MADE.keys())
def test_auto_hand_made(graph: LayerGraph, cluster: Cluster) -> None:
    """Odd graphs, and every candidate placed by name: single first, so it wins among equals."""
    plan = place(graph, cluster)
    check(plan)
    assert plan.placer.startswith("auto (")
    names = {one.placer.split(" + ")[0] for one in plan.candidates}
    placers = {"single", "m-topo", "m-etf", "m-sct", "chain", "whole modules"}
    assert names <= {*placers, "bands", "bands 2", "exact", "by memory"}
    if len(cluster) == 1:
        assert plan.devices_used in ((), ("d0",))


def test_one_device_wins_among_equals() -> None:
    """A chain of layers on equal devices gains nothing from more of them."""
    assert place(chain(5), cluster_of(999, 999, link=FREE)).placer == "auto (single)"


def test_no_effort() -> None:
    """At effort 0 nothing is searched; with effort it is, and the step gets no longer."""
    graph, cluster = branches(7, 3), cluster_of(999, 999, 999, speeds=(1, 2, 3))
    lazy, eager = (place(graph, cluster, "auto", effort=effort) for effort in (0, 3))
    assert not any("search" in one.placer for one in lazy.candidates)
    assert simulate(eager).makespan_s <= simulate(lazy).makespan_s


@pytest.mark.parametrize(("layers", "searched"), [(21, True), (81, False)])
def test_no_search_for_little(layers: int, searched: bool) -> None:
    """Half a layer above the bound. Where that is a small part of the step, only more effort searches."""
    graph, cluster = graph_of({f"l{k}": {"forward_s": 1} for k in range(layers)}), cluster_of(99, 99)
    found = [
        {one.placer for one in place(graph, cluster, "auto", effort=effort).candidates} for effort in (1, 2)
    ]
    assert ["bands" in names for names in found] == [searched, True]


def test_a_search_where_waiting_costs() -> None:
    """A call that waits takes the host as long as a layer: placements for the code's order are better.

    Without a host's costs there is no such search, since no order costs anything.
    """
    graph = LayerGraph.from_networkx(layered(40, 1, travel=0.2, width=4, training=True))
    for name in graph:
        graph.nodes[name].update(host_forward_s=0.1, host_backward_s=0.1)
    free = replace(cluster_of(10**9, 10**9, 10**9), launch_s=0.1)
    charged = replace(free, host=HostCosts(waiting_layer_s=20, waiting_layer_threads_s=20))
    plan = place(graph, charged)
    assert plan.placer.endswith("code's order + search)")
    others = [one.step_s for one in plan.candidates if one.step_s and "order + search" not in one.placer]
    assert simulate(plan).makespan_s < 0.97 * min(others)
    assert not any(["code's order" in one.placer for one in place(graph, free).candidates])


@pytest.mark.parametrize("effort", [-1, "most", 0.5, True])
def test_negative_effort(effort: Any) -> None:
    """Less than nothing is refused, and what is no number."""
    with pytest.raises(ValueError, match=r"effort is .*at least 0, or 'max'"):
        place(chain(), cluster_of(999), "auto", effort=effort)


def test_refusals_are_candidates() -> None:
    """A placer that found nothing is named with its reason; what cannot be placed is refused with a proof."""
    plan = place(chain(6), cluster_of(50, 50, 50))
    refused = {one.placer: one.note for one in plan.candidates if one.step_s is None}
    assert "no device holds all layers" in refused["single"]
    with pytest.raises(PlacementError, match="layer l0 is larger than every device: it needs at least"):
        place(chain(6), cluster_of(5, 5))


@given(
    layer_graphs(pins=False), clusters(), st.lists(st.randoms(use_true_random=False), min_size=3, max_size=3)
)
@settings(max_examples=examples(100), deadline=None)
def test_rehearsal_is_the_simulator(graph: LayerGraph, cluster: Cluster, chances: list[Random]) -> None:
    """The same seconds and bytes for any plan, one after the other, fit or not."""
    rehearse, names = Rehearsal(graph, cluster), cluster.names
    indexed = Problem(graph, cluster).indexed
    layers = indexed.names
    for chance in chances:
        groups = [chance.randrange(len(names)) for _ in indexed.members]
        device_of = [groups[group] for group in indexed.group_of]
        weight = {name: chance.random() for name in layers}
        order: list[str] = []
        while len(order) < len(layers):
            ready = [
                name
                for name in layers
                if name not in order and all(p in order for p in graph.predecessors(name) if p in weight)
            ]
            order.append(min(ready, key=weight.__getitem__))
        homes = {name: names[device] for name, device in zip(layers, device_of, strict=True)}
        timeline = simulate(Plan(graph, cluster, homes, tuple(order)))
        step_s, peaks = rehearse(device_of, [order.index(name) for name in layers])
        assert step_s == timeline.makespan_s
        assert dict(zip(names, peaks, strict=True)) == timeline.peak_bytes
