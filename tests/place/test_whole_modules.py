"""Placements that keep modules whole, as a person would write them by hand."""

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest
from place.graphs import cluster_of, graph_of

from baechi.place.evaluation import Evaluated
from baechi.place.preference import cut_edges
from baechi.place.problem import ANYWHERE, Problem
from baechi.place.whole_modules import whole_modules
from baechi.records import LayerGraph, Link, Plan
from baechi.verbs.plans import place

TOWERS = {"vision": (24, 2.0), "text": (12, 1.0)}
LINK = Link(latency_s=0.0, bytes_per_s=1e9)


def towers(
    kinds: Mapping[str, tuple[int, float]],
    pins: Mapping[str, str] = MappingProxyType({}),
    param_bytes: int = 0,
) -> LayerGraph:
    """Towers, each a chain of blocks of two layers, and a head that reads the last layer of each."""
    nodes: dict[str, dict[str, Any]] = {}
    edges: list[tuple[str, str, int]] = []
    for tower, (blocks, work_s) in kinds.items():
        names = [f"{tower}.encoder.layers.{number}.{part}" for number in range(blocks) for part in ("a", "b")]
        for name in names:
            nodes[name] = {
                "forward_s": work_s, "backward_s": 2 * work_s, "output_bytes": 1000,
                "param_bytes": param_bytes,
            }  # fmt: skip
            if name in pins:
                nodes[name]["pin"] = pins[name]
        edges += [(one, other, 1000) for one, other in pairwise(names)]
        edges.append((names[-1], "head", 1000))
    nodes["head"] = {"forward_s": 0.001, "output_bytes": 8}
    return graph_of(nodes, edges)


def devices_of_towers(plan: Plan) -> dict[str, set[str]]:
    on: dict[str, set[str]] = {}
    for name, device in plan.device_of.items():
        on.setdefault(name.partition(".")[0], set()).add(device)
    return on


def test_towers_lie_whole() -> None:
    """Two towers on two devices: one edge is cut, and no plan is faster."""
    graph = towers(TOWERS)
    plan = place(graph, cluster_of(10**9, 10**9, link=LINK))
    problem = Problem(graph, plan.cluster)
    assert cut_edges(problem, Evaluated.of(problem, plan)) == 1
    on = devices_of_towers(plan)
    assert all(len(devices) == 1 for devices in on.values())
    assert on["vision"] != on["text"]


def test_three_towers_on_unequal_devices() -> None:
    """The heaviest tower has the fast device for itself."""
    graph = towers({"a": (4, 1.0), "b": (3, 1.0), "c": (16, 1.0)})
    plan = place(graph, cluster_of(10**9, 10**9, link=LINK, speeds=(0.5, 1.0)))
    on = devices_of_towers(plan)
    assert on["a"] == on["b"] == {"d0"}
    assert on["c"] == {"d1"}


def test_pins_stay() -> None:
    """A layer that is pinned lies there, whatever its module does."""
    graph = towers(TOWERS, {"vision.encoder.layers.3.a": "d1", "text.encoder.layers.0.b": "d0"})
    problem = Problem(graph, cluster_of(10**9, 10**9, link=LINK))
    found = whole_modules(problem, lambda on, order: Evaluated(tuple(on), tuple(order), 1.0, (0, 0)))
    pinned = {group: pin for group, pin in enumerate(problem.pins) if pin != ANYWHERE}
    assert sorted(pinned.values()) == [0, 1]
    assert found
    for one in found:
        assert {group: one.found.device_of[group] for group in pinned} == pinned


def test_what_does_not_fit_is_left_out() -> None:
    """No placement needs more memory than there is."""
    graph = towers(TOWERS, param_bytes=100)
    problem = Problem(graph, cluster_of(3000, 3000))
    full = whole_modules(problem, lambda on, order: Evaluated(tuple(on), tuple(order), 1.0, (3001, 0)))
    assert full == []


@pytest.mark.parametrize("names", [("0", "1", "2"), ("a", "a.b", "a.b.c")])
def test_names_without_modules(names: tuple[str, ...]) -> None:
    """Numbers, and modules that have layers beside modules, are divided as far as their names go."""
    graph = graph_of(
        {name: {"forward_s": 1.0} for name in names}, [(one, other, 1) for one, other in pairwise(names)]
    )
    plan = place(graph, cluster_of(100, 100))
    assert set(plan.device_of) == set(names)
