"""Worlds made by hand, with what is expected of each placer there: the JSON files of `cases/`.

name, why                how the expectation was worked out
inputs, layers, edges    the graph: attributes by layer; edges as `graph_of` takes them
training, optimizer      of the graph
cluster                  bytes of `d0`, `d1`, ...; `link` and `links` as seconds and bytes a second,
                         null for no limit; `speeds`, `reception`
expect                   facts by placers: "every", or names with a space between; a name without
                         its number means all of its kind, and what is said later counts more
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from place.every import EVERY
from place.graphs import cluster_of, graph_of

from baechi.records import Cluster, LayerGraph, Link, Plan

FACTS: dict[str, Callable[[Plan, Any], bool]] = {
    "step_s": lambda plan, seconds: plan.timeline.makespan_s == seconds,
    "at_least_s": lambda plan, seconds: plan.timeline.makespan_s >= seconds,
    "devices_used": lambda plan, count: len(plan.devices_used) == count,
    "device_of": lambda plan, where: where.items() <= plan.device_of.items(),
    "order": lambda plan, order: list(plan.order) == order,
    "together": lambda plan, parts: all(len(devices(plan, part)) == 1 for part in parts),
    "apart": lambda plan, parts: all(len(devices(plan, part)) == len(part) for part in parts),
    "transfers": lambda plan, count: plan.timeline.counters["transfers"] == count,
    "peak_bytes": lambda plan, peaks: peaks.items() <= dict(plan.timeline.peak_bytes).items(),
}


PARTS = {"name", "why", "inputs", "layers", "edges", "training", "optimizer", "cluster", "expect"}


@dataclass(frozen=True)
class Case:
    """A world and what is expected there."""

    name: str
    graph: LayerGraph
    cluster: Cluster
    expect: Mapping[str, Mapping[str, Any]]

    def expected_of(self, placer: str) -> dict[str, Any]:
        """The facts about a placer's plan; `refused` names the layer of the error, "" any."""
        names = {"every", placer, placer.partition(":")[0]}
        found = [facts for who, facts in self.expect.items() if names & set(who.split())]
        return {name: value for facts in found for name, value in facts.items()}


def devices(plan: Plan, layers: list[str]) -> set[str]:
    """Where some layers lie."""
    return {plan.device_of[name] for name in layers}


def load() -> list[Case]:
    """All cases, by file and place in it."""
    files = sorted((Path(__file__).parent / "cases").glob("*.json"))
    return [_case(world) for file in files for world in json.loads(file.read_text())]


def _case(world: dict[str, Any]) -> Case:
    assert set(world) <= PARTS and world["why"], f"{world['name']}: a part is unknown, or it has no reason"
    named = {name for who in world["expect"] for name in who.split()}
    assert named <= {"every", *EVERY, *[name.partition(":")[0] for name in EVERY]}, (
        f"{world['name']}: {named}"
    )
    inputs = {f"input:{name}": {"kind": "input"} for name in world.get("inputs", [])}
    attributes = {name: world[name] for name in ("training", "optimizer") if name in world}
    graph = graph_of(inputs | world.get("layers", {}), world.get("edges", []), **attributes)
    rest = dict(world["cluster"])
    links = {tuple(pair.split(">")): _link(*link) for pair, link in rest.pop("links", {}).items()}
    link = _link(*rest.pop("link", (0, 1)))
    return Case(
        world["name"], graph, cluster_of(*rest.pop("memory"), link=link, links=links, **rest), world["expect"]
    )


def _link(latency_s: float, bytes_per_s: float | None) -> Link:
    return Link(float(latency_s), float("inf") if bytes_per_s is None else bytes_per_s)
