"""What an integer program packs is placed; what is refused cannot be placed."""

from itertools import permutations, product

import pytest
from place.checker import check
from place.graphs import cluster_of, graph_of
from place.tight.heavy import SLOW, heavy

from baechi.errors import PlacementError
from baechi.place.problem import Problem
from baechi.place.tight.bundles import Bundles
from baechi.place.tight.integer_program import IntegerProgram
from baechi.place.tight.least_bytes import least_bytes
from baechi.records import Cluster, LayerGraph
from baechi.simulate import Rehearsal
from baechi.verbs.plans import place

pytestmark = pytest.mark.default_cases(2)

PLACERS = ("m-topo", "m-etf", "m-sct", "auto")


def least_factor(graph: LayerGraph, devices: int) -> int:
    """The least memory of equal devices with which some placement fits in some order: all are tried."""
    cluster = cluster_of(*[10**6] * devices, link=SLOW)
    problem, rehearse = Problem(graph, cluster), Rehearsal(graph, cluster)
    indexed = problem.indexed
    parents = [{indexed.source[tensor] for tensor in reads} for reads in indexed.reads]
    layers = range(len(indexed))
    orders = [o for o in permutations(layers) if all(parents[n] <= set(o[:i]) for i, n in enumerate(o))]
    return min(
        max(rehearse(device_of, [order.index(layer) for layer in layers])[1])
        for device_of in product(range(devices), repeat=len(indexed))
        for order in orders
    )


@pytest.mark.parametrize("placer", PLACERS)
@pytest.mark.parametrize("training", [False, True])
def test_forty_layers(placer: str, training: bool) -> None:
    """40 layers, 4 devices, a quarter more than the layers need: all that the program packs are placed."""
    for seed in range(8):
        graph = heavy(40, seed, training=training)
        parts = Problem(graph, cluster_of(1)).footprints
        sizes = [p.permanent_bytes + max(p.forward_bytes, p.backward_bytes) for p in parts]
        cluster = cluster_of(*[int(1.25 * sum(sizes) / 4)] * 4, link=SLOW)
        problem = Problem(graph, cluster)
        least = least_bytes(problem)
        assert (
            IntegerProgram(problem, Bundles(problem, least, 99), problem.memory_bytes).solve().device_of
            is not None
        )
        check(place(graph, cluster, placer, effort=0))


@pytest.mark.parametrize("seed", range(4))
def test_tighter_than_any_ledger(seed: int) -> None:
    """Little more than all that ever stays, copies included: program and repair place it."""
    cluster = kept_with_slack(seed, 1.15)
    graph = heavy(40, seed, training=True)
    check(place(graph, cluster, "m-topo"))


def kept_with_slack(seed: int, slack: float) -> Cluster:
    """Four devices for `heavy` in training, by what is there when forward is over, and by gradients."""
    least = least_bytes(Problem(heavy(40, seed, training=True), cluster_of(1)))
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


@pytest.mark.full
def test_note_and_repeat() -> None:
    """A plan made by memory alone says so, and is the same again."""
    graph, cluster = heavy(40, 2, training=True), kept_with_slack(2, 1.15)
    one, two = place(graph, cluster, "m-etf"), place(graph, cluster, "m-etf")
    (candidate,) = one.candidates
    assert candidate.note.startswith("no room for layer l")
    assert candidate.note.endswith("placed by memory alone instead")
    assert (one.device_of, one.order) == (two.device_of, two.order)
