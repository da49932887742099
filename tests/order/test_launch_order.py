"""From a plan to the order in which layers launch: parents through glue, calls of stateful modules."""

from dataclasses import replace
from random import Random
from typing import Any

from order.drives import Drive, random_topological
from place.graphs import cluster_of, graph_of

from baechi.order import LaunchOrder
from baechi.records import Cluster, Device, Plan

GLUE = {"kind": "glue"}
CLUSTER = cluster_of(100, 100)
BESIDE = Cluster((*CLUSTER.devices, Device("cpu", memory_bytes=100)))


def plan_of(nodes: dict[str, dict[str, Any]], edges: str, order: str, second: str = "") -> Plan:
    """A plan of nodes with names of one letter; those in `second` are on the second device."""
    graph = graph_of(nodes, [tuple(edge) for edge in edges.split()])
    placed = list(graph.placed())
    return Plan(graph, CLUSTER, {name: f"d{int(name in second)}" for name in placed}, tuple(order))


def test_parents_through_glue() -> None:
    """What a layer reads through any number of glue nodes it reads; glue and inputs are no layers."""
    nodes: dict[str, dict[str, Any]] = {name: {} for name in "abcd"} | {"g": GLUE, "h": GLUE, "k": GLUE}
    nodes = {"x": {"kind": "input"}, **nodes}
    plan = plan_of(nodes, "xa xb ag bg gh hc xk kd", "abghckd")
    order = LaunchOrder.of(plan)
    assert order.parents == {"a": (), "b": (), "c": ("a", "b"), "d": ()}
    assert order.order == order.code_order == tuple("abcd")
    assert order.device_of == dict.fromkeys("abcd", "d0")


def test_an_order_without_a_tensor() -> None:
    """Who must follow another, because it writes what that reads, is its child."""
    graph = graph_of({"a": {}, "b": {}}, [("a", "b", {"order_only": True})])
    order = LaunchOrder.of(Plan(graph, CLUSTER, {"a": "d0", "b": "d1"}))
    assert order.parents == {"a": (), "b": ("a",)}


def test_queues() -> None:
    """Each device has the plan's order, restricted to its layers; glue takes no place in it."""
    nodes: dict[str, dict[str, Any]] = {name: {} for name in "abcd"} | {"g": GLUE}
    order = LaunchOrder.of(plan_of(nodes, "ag", "dcgba".replace("g", "") + "g", second="bd"))
    assert order.queues() == {"d1": ["d", "b"], "d0": ["c", "a"]}
    assert order.numbered_queues == [["d", "b"], ["c", "a"]]
    assert order.places == {"d": (0, 0), "b": (0, 1), "c": (1, 0), "a": (1, 1)}
    assert order.code_places == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_random_plans() -> None:
    """Whatever the plan, the order has every layer once, after its parents, and nothing else moved."""
    for seed in range(1_000):
        chance = Random(seed)
        plan = random_plan(chance)
        order = LaunchOrder.of(plan)
        layers = [name for name in plan.graph if plan.graph.nodes[name]["kind"] == "layer"]
        assert sorted(order.order) == sorted(order.code_order) == sorted(layers)
        place = {name: index for index, name in enumerate(order.order)}
        assert all(place[parent] < place[name] for name in layers for parent in order.parents[name])
        planned = [name for name in plan.order if name in place]
        assert list(order.order) == planned


def test_the_host_lets_others_go_first() -> None:
    """Layers of the host wait for others only, all in one order: nobody waits in a circle, all launch
    before the code ends, each device in the plan's order, and each after whom it lets go first."""
    waited = 0
    for seed in range(500):
        chance = Random(seed)
        order = LaunchOrder.of(random_plan(chance, BESIDE))
        code = random_topological(chance, order.parents)
        order = replace(order, code_order=code)
        run = Drive(order).run(code)
        assert not run.waiting and not run.forced
        assert all(run.launched_on(device) == queue for device, queue in order.queues().items())
        place = {layer: index for index, layer in enumerate(run.launched)}
        for layer, others in order.first.items():
            assert order.device_of[layer] == "cpu"
            assert all(order.device_of[other] != "cpu" and place[other] < place[layer] for other in others)
        waited += len(run.waited)
    assert waited > 400


def random_plan(chance: Random, cluster: Cluster = CLUSTER) -> Plan:
    """A random graph of layers and glue in code order, some calls of two modules, in a random order."""
    names = [f"n{index}" for index in range(chance.randint(1, 10))]
    nodes: dict[str, dict[str, Any]] = {}
    parents: dict[str, tuple[str, ...]] = {}
    for index, name in enumerate(names):
        nodes[name] = dict(GLUE) if chance.random() < 0.3 else {"module": chance.choice([name, "m0", "m1"])}
        parents[name] = tuple([other for other in names[:index] if chance.random() < 0.25])
    edges = [(parent, name) for name, found in parents.items() for parent in found]
    devices = {name: chance.choice(cluster.names) for name in names}
    return Plan(graph_of(nodes, edges), cluster, devices, random_topological(chance, parents))
