"""Layers whose activations weigh more than their weights."""

from random import Random
from typing import Any

from place.graphs import graph_of

from baechi.place.problem import Problem
from baechi.records import LayerGraph, Link, Plan

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


def indexed_plan(problem: Problem, plan: Plan) -> tuple[list[int], list[int]]:
    """By layer: device, place in the order."""
    place_of = {name: number for number, name in enumerate(plan.order)}
    names = problem.indexed.names
    return [plan.cluster.names.index(plan.device_of[name]) for name in names], [place_of[n] for n in names]
