"""Pipelines of random graphs, placements, clusters and orders."""

from random import Random

import networkx as nx

from baechi.records import Cluster, Device, LayerGraph, Link, Plan
from baechi.records.pipeline import Pipeline, Task, units_of
from baechi.records.pipeline.dependencies import comes_after


def random_pipeline(seed: int, layers: int = 7, edges: float = 0.5) -> Pipeline:
    chance = Random(seed)
    size, devices = chance.randint(1, layers), chance.randint(1, 3)
    graph = nx.DiGraph(training=chance.random() < 0.8)
    graph.add_node("x", kind="input")
    knows_host = chance.random() < 0.5
    for number in range(size):
        host = {
            f"host_{phase}_s": chance.random() * chance.choice([0.01, 1]) for phase in ("forward", "backward")
        }
        graph.add_node(
            f"l{number}",
            forward_s=chance.random(),
            backward_s=2 * chance.random(),
            grad_bytes=chance.choice([0, chance.random()]),
            **(host if knows_host else {}),
        )
    for number in range(size):
        sources = [source for source in range(number) if chance.random() < edges]
        for source in [f"l{source}" for source in sources] or ["x"]:
            graph.add_edge(source, f"l{number}", tensor="0")
    for source in graph:
        amount = chance.randrange(10**6)
        for reader in graph.successors(source):
            graph.edges[source, reader]["bytes"] = amount
    if chance.random() < 0.5:
        for place, name in enumerate([name for name in graph if not list(graph.successors(name))]):
            graph.nodes[name]["returned"] = {str(place): chance.randrange(10**6)}
    if size > 1 and chance.random() < 0.3:  # the code asks for values
        asked = chance.randrange(size - 1)
        graph.nodes[f"l{asked}"]["awaited_before"] = f"l{chance.randrange(asked + 1, size)}"
    cluster = Cluster(
        tuple(
            Device(f"d{n}", speed=chance.choice([1.0, 0.7]), bytes_per_s=chance.choice([0.0, 10.0]))
            for n in range(devices)
        ),
        link=Link(chance.random() * chance.choice([0, 0.1]), chance.choice([5e5, 3e6])),
        reception=chance.choice(["serial", "free"]),
        launch_s=chance.random() * 0.01,
    )
    layers = LayerGraph.from_networkx(graph)
    plan = Plan(layers, cluster, {name: f"d{chance.randrange(devices)}" for name in layers.placed()})
    microbatches = chance.randint(1, 4)
    return Pipeline(plan, microbatches, random_order(plan, microbatches, chance))


def random_order(plan: Plan, microbatches: int, chance: Random) -> tuple[Task, ...]:
    units = units_of(plan)
    waiting = {task: {before for before, _ in comes_after(units, task)} for task in units.tasks(microbatches)}
    order: list[Task] = []
    while waiting:
        order.append(chance.choice([task for task, before in waiting.items() if not before]))
        del waiting[order[-1]]
        for before in waiting.values():
            before.discard(order[-1])
    return tuple(order)
