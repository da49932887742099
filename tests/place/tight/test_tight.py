"""Tight memory: what an integer program packs is placed; what is refused cannot be placed."""

from itertools import permutations, product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from place.checker import check
from place.graphs import cluster_of, graph_of
from place.ledgers.test_ledgers import any_plan
from place.strategies import clusters, layer_graphs

from baechi.errors import PlacementError
from baechi.place.task import Task
from baechi.place.tight.bundles import Bundles
from baechi.place.tight.least_bytes import least_bytes, least_peaks
from baechi.place.tight.lifetimes import Lifetimes
from baechi.place.tight.program import Program
from baechi.records import Cluster, LayerGraph, Link, Plan
from baechi.simulate import Rehearsal, simulate
from baechi.verbs.planning import place

PLACERS = ("m-topo", "m-etf", "m-sct", "auto")
SLOW = Link(0.1, 5.0)


def heavy(layers: int, seed: int, *, training: bool) -> LayerGraph:
    """Random layers whose activations and temporary tensors weigh more than their weights."""
    chance = Random(seed)
    nodes: dict[str, dict[str, Any]] = {}
    edges: list[tuple[Any, ...]] = []
    for number in range(layers):
        output, weights = chance.randint(1, 20), chance.randint(0, 12)
        nodes[f"l{number}"] = {
            "forward_s": chance.choice([1, 2, 3, 7]),
            "backward_s": chance.choice([1, 2, 5]),
            "param_bytes": weights,
            "grad_bytes": weights,
            "output_bytes": output,
            "saved_bytes": round(chance.choice([0, 0.5, 1, 1.5]) * output),
            "upstream_grad_bytes": output,
            "temp_bytes": chance.choice([0, 0, 2, 9]),
        }
        near = range(max(0, number - 4), number)
        for parent in chance.sample(near, min(len(near), chance.randint(1, 3))):
            edges.append((f"l{parent}", f"l{number}", nodes[f"l{parent}"]["output_bytes"]))
    return graph_of(nodes, edges, training=training)


def indexed_plan(task: Task, plan: Plan) -> tuple[list[int], list[int]]:
    """By layer: device, place in the order."""
    place_of = {name: number for number, name in enumerate(plan.order)}
    names = task.indexed.names
    return [plan.cluster.names.index(plan.device_of[name]) for name in names], [place_of[n] for n in names]


def least_factor(graph: LayerGraph, devices: int) -> int:
    """The least memory of equal devices with which some placement fits in some order: all are tried."""
    cluster = cluster_of(*[10**6] * devices, link=SLOW)
    task, rehearse = Task(graph, cluster), Rehearsal(graph, cluster)
    indexed = task.indexed
    parents = [{indexed.source[tensor] for tensor in reads} for reads in indexed.reads]
    layers = range(len(indexed))
    orders = [o for o in permutations(layers) if all(parents[n] <= set(o[:i]) for i, n in enumerate(o))]
    return min(
        max(rehearse(device_of, [order.index(layer) for layer in layers])[1])
        for device_of in product(range(devices), repeat=len(indexed))
        for order in orders
    )


@given(layer_graphs(), clusters(), st.integers(0, 10**6))
@settings(max_examples=300, deadline=None)
def test_least_bytes(graph: LayerGraph, cluster: Cluster, seed: int) -> None:
    """No simulated peak is below what proofs and programs count on, whatever the plan."""
    plan, task = any_plan(graph, cluster, Random(seed)), Task(graph, cluster)
    where, _ = indexed_plan(task, plan)
    least = least_peaks(task, least_bytes(task), [where[members[0]] for members in task.indexed.members])
    for peak, needed in zip(simulate(plan).peak_bytes.values(), least, strict=True):
        assert needed <= peak


@pytest.mark.parametrize("training", [False, True])
def test_lifetimes_on_one_device(training: bool) -> None:
    """On one device turns are as good as seconds."""
    for seed in range(20):
        plan = any_plan(heavy(20, seed, training=training), cluster_of(999), Random(seed))
        guesses = Lifetimes(Task(plan.graph, plan.cluster))(
            *indexed_plan(Task(plan.graph, plan.cluster), plan)
        )
        assert guesses == [simulate(plan).peak_bytes["d0"]]


@pytest.mark.parametrize("training", [False, True])
def test_lifetimes_on_several_devices(training: bool) -> None:
    """Over several devices the estimate is near, on average and at worst."""
    ratios = []
    for seed in range(20):
        plan = any_plan(heavy(40, seed, training=training), cluster_of(*[999] * 4, link=SLOW), Random(seed))
        task = Task(plan.graph, plan.cluster)
        guesses = Lifetimes(task)(*indexed_plan(task, plan))
        ratios += [g / p for g, p in zip(guesses, simulate(plan).peak_bytes.values(), strict=True)]
    assert 0.97 < sum(ratios) / len(ratios) < 1.03
    assert min(ratios) > 0.7
    assert max(ratios) < 1.3


@pytest.mark.parametrize("placer", PLACERS)
@pytest.mark.parametrize("training", [False, True])
def test_forty_layers(placer: str, training: bool) -> None:
    """40 layers, 4 devices, a quarter more than the layers need: all that the program packs are placed."""
    for seed in range(8):
        graph = heavy(40, seed, training=training)
        parts = Task(graph, cluster_of(1)).footprints
        sizes = [p.permanent_bytes + max(p.forward_bytes, p.backward_bytes) for p in parts]
        cluster = cluster_of(*[int(1.25 * sum(sizes) / 4)] * 4, link=SLOW)
        task = Task(graph, cluster)
        least = least_bytes(task)
        assert Program(task, Bundles(task, least, 99), task.memory_bytes).solve().device_of is not None
        check(place(graph, cluster, placer, effort=0))


@pytest.mark.parametrize("seed", range(4))
def test_tighter_than_any_ledger(seed: int) -> None:
    """Little more than all that ever stays, copies included: program and repair place it."""
    cluster = kept_with_slack(seed, 1.15)
    graph = heavy(40, seed, training=True)
    check(place(graph, cluster, "m-topo"))


def kept_with_slack(seed: int, slack: float) -> Cluster:
    """Four devices for `heavy` in training, by what is there when forward is over, and by gradients."""
    least = least_bytes(Task(heavy(40, seed, training=True), cluster_of(1)))
    stays = sum([part.kept_bytes + part.gradient_bytes for part in least])
    return cluster_of(*[int(slack * stays / 4)] * 4, link=SLOW)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("placer", [*PLACERS, "chain", "even", "round-robin", "random:3"])
def test_refused_only_where_nothing_fits(placer: str, training: bool) -> None:
    """Five layers with exactly the memory that the best of all plans needs, and with a byte less."""
    for seed in range(6):
        graph, devices = heavy(5, seed, training=training), 2 + seed % 2
        memory = least_factor(graph, devices)
        check(place(graph, cluster_of(*[memory] * devices, link=SLOW), placer))
        with pytest.raises(PlacementError):
            place(graph, cluster_of(*[memory - 1] * devices, link=SLOW), placer)


@pytest.mark.parametrize("placer", [*PLACERS, "chain", "even", "round-robin", "random:3"])
def test_one_way_alone(placer: str) -> None:
    """The first layer needs the large device: whoever begins with the small one used to be stuck."""
    nodes = {"a": {"param_bytes": 2, "output_bytes": 2}, "b": {"param_bytes": 2, "temp_bytes": 5}}
    check(place(graph_of(nodes, [("a", "b", 2)]), cluster_of(10, 5), placer))


def test_one_device_by_the_simulator() -> None:
    """The ledger adds what is never there at once; one device holds it, so it is a plan, and auto's."""
    nodes = {
        "a": {"saved_bytes": 10, "upstream_grad_bytes": 40, "forward_s": 1, "backward_s": 1},
        "b": {"saved_bytes": 30, "forward_s": 1, "backward_s": 1},
    }
    graph = graph_of(nodes, [("a", "b", 1)], training=True)
    plan = place(graph, cluster_of(50, 40), "single")
    assert plan.devices_used == ("d0",)
    assert place(graph, cluster_of(50, 40)).placer == "auto (single)"


def test_note_and_repeat() -> None:
    """A plan made by memory alone says so, and is the same again."""
    graph, cluster = heavy(40, 2, training=True), kept_with_slack(2, 1.15)
    one, two = place(graph, cluster, "m-etf"), place(graph, cluster, "m-etf")
    (candidate,) = one.candidates
    assert candidate.note.startswith("no room for layer l")
    assert candidate.note.endswith("placed by memory alone instead")
    assert (one.device_of, one.order) == (two.device_of, two.order)
