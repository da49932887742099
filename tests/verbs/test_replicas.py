"""Replicas: how many, on which devices, and what their gradients take."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import networkx as nx
import pytest
from records.pipeline.chains import chain
from torch import nn

import baechi
from baechi import Cluster, LayerGraph, Link, Replicas
from baechi.errors import PlacementError, PlanError
from baechi.simulate.pipeline import PipelineCoster, shortest_pipeline_s
from baechi.verbs import replicas

FAST = Link(1e-6, 1e12)
SLOW = Link(1e-6, 1e9)


def layers(count: int, weights_bytes: int = 0, times: tuple[float, ...] = ()) -> LayerGraph:
    """A chain of layers, of a second forward and two backward, with gradients as large as weights."""
    graph = chain([(one, 2 * one) for one in times or (1.0,) * count], size=8)
    for name in list(graph.placed()):
        graph.nodes[name].update(param_bytes=weights_bytes, grad_bytes=weights_bytes)
    return graph


def test_all_devices_are_used() -> None:
    """A chain of four layers on eight devices that hold two layers each: two replicas of four, or of two."""
    cluster = Cluster.parse("2x(4xA100-40GB)", link=FAST, memory=250)
    found = baechi.replicate(layers(4, 60), cluster, microbatches=4, optimizer="sgd")
    used = [name for group in found.groups for name in group]
    assert sorted(used) == sorted(cluster.names)
    assert found.pipeline.cluster.names == found.groups[0]
    assert len(found.groups) > 1


@pytest.mark.parametrize("memory", [130, 260, 520])
def test_no_number_is_better(memory: int) -> None:
    """Brute force: of all numbers of replicas none trains more microbatches in a second."""
    cluster, graph = Cluster.parse("2x(4xA100-40GB)", link=FAST, memory=memory), layers(8, 30)
    found = baechi.replicate(graph, cluster, microbatches=4, optimizer="sgd", effort=0)
    rates = []
    for count in (1, 2, 4, 8):
        try:
            one = baechi.replicate(graph, cluster, microbatches=4, replicas=count, optimizer="sgd", effort=0)
        except PlacementError:
            continue
        assert len(one.groups) == count
        rates.append(one.microbatches_per_s)
    assert found.microbatches_per_s == max(rates)


@pytest.mark.parametrize("times", [(1.0, 2.0, 1.0, 4.0), (3.0, 1.0, 1.0, 2.0, 1.0), (1.0,) * 6])
def test_no_cut_of_any_replicas_is_better(times: tuple[float, ...]) -> None:
    """Brute force over replicas and lengths: parts of a chain, three layers at most on a device."""
    cluster, graph = Cluster.parse("1x(4xA100-40GB)", link=FAST, memory=400), layers(len(times), 60, times)
    found = baechi.replicate(graph, cluster, microbatches=4, optimizer="sgd")
    nodes, rates = list(graph.placed()), list[float]()
    for count in (1, 2, 4):
        part = cluster.part(cluster.names[: 4 // count])
        for used in range(1, len(part) + 1):
            for ends in combinations(range(1, len(nodes)), used - 1):
                starts = (0, *ends, len(nodes))
                lengths = [end - start for start, end in pairwise(starts)]
                devices = [
                    name for name, length in zip(part.names, lengths, strict=False) for _ in range(length)
                ]
                plan = baechi.Plan.from_device_map(graph, part, dict(zip(nodes, devices, strict=True)))
                made = baechi.pipeline(plan, 4)
                if max(made.timeline.peak_bytes.values()) <= 400:
                    rates.append(count * 4 / made.timeline.makespan_s)
    assert rates and found.microbatches_per_s >= 0.999 * max(rates)


def test_gradients_are_added_up_in_a_ring() -> None:
    """Of four replicas each device sends 2 (R - 1) / R of its gradients over the slowest link of the ring."""
    cluster = Cluster.parse("4x(1xA100-40GB)", link=SLOW)
    found = baechi.replicate(layers(2, 4 * 10**9), cluster, microbatches=2, replicas=4, optimizer="sgd")
    (seconds,) = found.all_reduce_s.values()
    assert seconds == pytest.approx(2 * 3 / 4 * 8 * 10**9 / 1e9, rel=1e-5)
    assert found.step_s == pytest.approx(found.pipeline.timeline.makespan_s + seconds, rel=1e-5)


def test_what_cannot_be_faster_is_not_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal layers more replicas are always better: all others are told by their cuts."""
    cluster, graph = Cluster.parse("2x(4xA100-40GB)", link=FAST), layers(16)
    ordered, placed = list[int](), replicas.placed_by_cuts
    monkeypatch.setattr(
        replicas,
        "placed_by_cuts",
        lambda graph, part, *a, **k: ordered.append(len(part)) or placed(graph, part, *a, **k),
    )
    found = baechi.replicate(graph, cluster, microbatches=4, optimizer="sgd")
    assert ordered == [1] and [one.count for one in found.tried] == [8, 4]
    rate = float(found.tried[1].refused.removeprefix("about ").partition(" ")[0])
    fewer = baechi.replicate(graph, cluster, microbatches=4, replicas=4, optimizer="sgd")
    assert fewer.microbatches_per_s <= 1.001 * rate < found.microbatches_per_s


def test_slow_links_make_fewer_replicas() -> None:
    """Where adding up gradients takes longer than the step, one pipeline over all devices is better."""
    graph = layers(2, 10**9)
    many, few = [
        baechi.replicate(graph, Cluster.parse("2x(1xA100-40GB)", link=link), microbatches=8, optimizer="sgd")
        for link in (FAST, Link(1e-6, 1e6))
    ]
    assert (len(many.groups), len(few.groups)) == (2, 1)
    assert [one.count for one in few.tried] == [2, 1]


def test_groups_are_alike() -> None:
    """Groups of other devices, or across hosts, are none."""
    unequal = Cluster.parse("2x(2xA100-40GB),1x(2xL40S)")
    for number in (3, 0, True, "two"):
        with pytest.raises(ValueError, match="divide into 1 equal"):
            baechi.replicate(layers(4), unequal, microbatches=2, replicas=number)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="graph is of type dict"):
        baechi.replicate({1: layers(4)}, unequal, microbatches=2)  # type: ignore[arg-type]
    found = baechi.replicate(layers(4), Cluster.parse("3x(2xA100-40GB)"), microbatches=2, replicas=3)
    assert found.groups == tuple([(f"host{h}/device:0", f"host{h}/device:1") for h in range(3)])


def test_links_of_their_own_are_compared() -> None:
    """Two pairs of devices of which one has a slow link are not two equal groups."""
    names = Cluster.uniform(4).names
    slow = {pair: SLOW for pair in product(names[:2], repeat=2) if pair[0] != pair[1]}
    cluster = Cluster(Cluster.uniform(4).devices, links=slow, link=FAST)
    with pytest.raises(ValueError, match="divide into 1, 4 equal"):
        baechi.replicate(layers(4), cluster, microbatches=2, replicas=2)


def test_a_file(tmp_path: object) -> None:
    """It is read as it was written, says what was tried, and is no plan of one process."""
    found = baechi.replicate(layers(4), "2x(2xA100-40GB)", microbatches=2)
    file = f"{tmp_path}/replicas.json"
    found.save(file)
    again = Replicas.load(file)
    assert again.to_json() == found.to_json() and again.step_s == found.step_s
    assert "4 replicas of 1 device each" in str(again) and "chosen" in str(again)
    with pytest.raises(PlanError, match="DistributedDataParallel"):
        baechi.distribute(nn.Linear(1, 1), plan=file)


def test_what_fits_nowhere() -> None:
    """The error is that of the largest group."""
    with pytest.raises(PlacementError, match="larger than every device"):
        baechi.replicate(layers(4, 10**12), "2x(2xA100-40GB)", microbatches=2, optimizer="sgd")


def test_each_rank_has_a_host() -> None:
    """Where issuing takes as long as computing, one host of four devices takes four times as long."""
    graph = layers(4)
    for name in graph.placed():
        graph.nodes[name].update(host_forward_s=1.0, host_backward_s=2.0)
    text, microbatches = "1x(4xA100-40GB)", 8
    alone, ranked = [
        baechi.replicate(graph, cluster, microbatches=microbatches, replicas=1, optimizer="sgd")
        for cluster in (Cluster.parse(text, link=FAST), text)
    ]
    assert alone.step_s > 0.99 * microbatches * 4 * 3
    assert microbatches * 3 < ranked.step_s < 1.1 * (microbatches + 3) * 3  # a device's work, and the bubble
    assert ranked.pipeline.cluster.ranks == (0, 1, 2, 3)


def test_malformed() -> None:
    """A device twice, one that is not there, groups of another size."""
    found = baechi.replicate(layers(4), "2x(2xA100-40GB)", microbatches=2, replicas=2)
    first, second = found.groups
    for groups, why in (
        ((first, first), "is in two replicas"),
        ((first, ("a", "b")), "no device"),
        ((first, second[:1]), "has 1 devices"),
        ((second, first), "not those of the pipeline"),
    ):
        with pytest.raises(PlanError, match=why):
            Replicas(found.pipeline, found.cluster, groups)


def test_what_no_cut_fits_is_refused_at_once() -> None:
    """Two devices hold all layers, and not those of four microbatches: four devices take it."""
    graph = layers(4, 30)
    for name in list(graph.placed()):
        graph.nodes[name].update(saved_bytes=100, output_bytes=8)
    cluster = Cluster.parse("2x(2xA100-40GB)", link=FAST, memory=500)
    found = baechi.replicate(graph, cluster, microbatches=4, optimizer="sgd", effort=0)
    assert [one.count for one in found.tried] == [4, 2, 1] and len(found.groups) == 1
    assert "no contiguous cut keeps the memory of 4 microbatches in flight" in found.tried[1].refused
    assert "recompute='auto'" in found.tried[1].refused
    again = baechi.replicate(graph, cluster, microbatches=4, optimizer="sgd", effort=0, recompute="auto")
    assert len(again.groups) >= 1 and max(again.pipeline.timeline.peak_bytes.values()) <= 500


@pytest.mark.parametrize("hosts", ["2x(2xA100-40GB)", "4x(1xA100-40GB)", "1x(4xA100-40GB)"])
def test_the_bound_is_that_of_1f1b(hosts: str) -> None:
    """Of equal layers: the work of a device, the bubble of the textbook, and the ring."""
    graph, size = layers(8), 3 * 10**9
    for name in list(graph.placed()):
        graph.nodes[name].update(grad_bytes=size)
    for count in (1, 2, 4):
        cluster = Cluster.parse(hosts, link=SLOW)
        found = baechi.replicate(graph, cluster, microbatches=4, replicas=count, optimizer="sgd", effort=0)
        devices, bound_s = 4 // count, found.bound_s
        assert bound_s["work"] == pytest.approx(4 * 8 * 3 / devices, rel=0.05)  # and gradients are added up
        assert bound_s["bubble"] == pytest.approx(bound_s["work"] * (devices - 1) / 4)
        assert bound_s["gradients"] == pytest.approx(sum(found.all_reduce_s.values()) / devices)
        assert 0.75 < found.step_s / sum(bound_s.values()) < 1.1
        assert f"{found.step_s / sum(bound_s.values()):.3g} times work " in str(found)


@pytest.mark.parametrize("reception", ["serial", "free"])
def test_a_network_card_is_shared(reception: str) -> None:
    """Two tensors that come to a host at a time: one after the other, if its devices share a card."""
    graph = nx.DiGraph(training=False)
    for name in ("a0", "b0", "a1", "b1"):
        graph.add_node(name, forward_s=1.0)
    graph.add_edges_from([("a0", "a1"), ("b0", "b1")], bytes=10**9)
    found = LayerGraph.from_networkx(graph)
    for one_card, took_s in ((False, 3.0), (True, 4.0)):
        cluster = Cluster.parse("2x(2xA100-40GB)", link=Link(0.0, 1e9), one_card=one_card)
        cluster = replace(cluster, reception=reception, launch_s=0.0)  # type: ignore[arg-type]
        plan = baechi.Plan(found, cluster, dict(zip(("a0", "b0", "a1", "b1"), cluster.names, strict=True)))
        assert baechi.simulate(plan).makespan_s == pytest.approx(took_s)
        assert baechi.simulate(baechi.pipeline(plan, 1)).makespan_s == pytest.approx(took_s)


def test_a_pipeline_over_a_shared_card() -> None:
    """Two towers whose tensors cross between hosts: the card is the limit, and the proof of it holds."""
    graph = nx.DiGraph(training=True)
    for name in ("a0", "b0", "a1", "b1"):
        graph.add_node(name, forward_s=0.5, backward_s=0.5)
    graph.add_edges_from([("a0", "a1"), ("b0", "b1")], bytes=10**9)
    found, steps = LayerGraph.from_networkx(graph), []
    for one_card in (False, True):
        cluster = Cluster.parse("2x(2xA100-40GB)", link=Link(0.0, 1e9), one_card=one_card)
        plan = baechi.Plan(found, cluster, dict(zip(("a0", "b0", "a1", "b1"), cluster.names, strict=True)))
        made = baechi.pipeline(plan, 8)
        assert made.timeline.makespan_s >= shortest_pipeline_s(
            PipelineCoster(found, cluster)([0, 1, 2, 3]), 8
        )
        steps.append(made.timeline.makespan_s)
    assert steps[1] >= 16.0  # sixteen tensors of a second each come to the second host
    assert steps[0] < 12.0


def test_rings_share_a_card() -> None:
    """Of two replicas over two hosts each of two devices, two rings come to each host at a time."""
    graph = layers(2, 10**9)
    took_s = []
    for one_card in (False, True):
        cluster = Cluster.parse("2x(2xA100-40GB)", link=Link(0.0, 1e9), one_card=one_card)
        found = baechi.replicate(graph, cluster, microbatches=2, replicas=2, optimizer="sgd", effort=0)
        took_s.append(max(found.all_reduce_s.values()))
    assert took_s == [pytest.approx(1.0), pytest.approx(2.0)]
    with pytest.raises(ValueError, match="one_card is for listed hosts"):
        Cluster.parse("2xA100-40GB", one_card=True)
