"""A forward that begins in the middle of the last accepted one is what it is from the beginning."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from benches.models.layered import cluster_for, layered
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.graphs import BYTE_A_SECOND, cluster_of, graph_of
from place.search.test_estimate import uneven
from place.strategies import clusters, layer_graphs

from baechi.place.bottom_level import bottom_levels
from baechi.place.problem import Problem
from baechi.place.search.estimating.compiled import Floats, Ints
from baechi.place.search.estimating.course import KEPT, NEVER, START, Course, accept
from baechi.place.search.estimating.critical import Critical, follow
from baechi.place.search.estimating.differences import Change, anew, of_devices, of_priority
from baechi.place.search.estimating.estimate import estimate
from baechi.place.search.estimating.tables import Tables, is_alone
from baechi.records import Cluster, LayerGraph


class Walk:
    """A placement that changes again and again, and its course.

    Args:
        graph, cluster: the problem.
        chance: what changes.
    """

    def __init__(self, graph: LayerGraph, cluster: Cluster, chance: Random) -> None:
        self.chance = chance
        self.problem = Problem(graph, cluster)
        self.tables = Tables.of(self.problem)
        self.course, self.layers = Course.of(self.tables), len(self.problem.indexed)
        groups = [chance.randrange(len(cluster)) for _ in self.problem.indexed.members]
        self.on = np.array([groups[group] for group in self.problem.indexed.group_of], np.int64)
        self.priority = np.array(bottom_levels(self.problem, groups))
        self.order = np.empty(self.layers, np.int64)
        self.step_s = self.estimated(
            self.course, self.on, self.priority, NEVER, self.order, anew(self.tables)
        )
        accept(self.tables, self.course, START, self.on, self.order)

    def estimated(
        self, course: Course, on: Ints, priority: Floats, limit_s: float, order: Ints, change: Change
    ) -> float:
        """An estimate."""
        return float(estimate(self.tables, course, on, priority, limit_s, order, change))

    def drawn(self) -> tuple[Ints, Floats, Change]:
        """Another device for some layers, or another priority for one: devices, priorities, the change."""
        on, priority, layers = self.on.copy(), self.priority.copy(), range(self.layers)
        if self.chance.random() < 0.3:
            layer = self.chance.choice(layers)
            priority[layer] *= self.chance.uniform(0.3, 3)
            return on, priority, of_priority(self.tables, self.course, layer)
        moved = self.chance.sample(layers, self.chance.randint(1, min(3, self.layers)))
        for layer in moved:
            on[layer] = self.chance.randrange(len(self.problem.cluster))
        host = self.tables.charged and is_alone(on) != is_alone(self.on)
        return on, priority, of_devices(self.tables, self.course, np.array(moved, np.int64), host)

    def go_on(self, part: float) -> int:
        """Change, estimate, compare with an estimate from the beginning. Returns where it began."""
        on, priority, change = self.drawn()
        order, whole = self.order.copy(), self.order.copy()
        start = anew(self.tables)
        whole_s = self.estimated(Course.of(self.tables), on, priority, NEVER, whole, start)
        found_s = self.estimated(self.course, on, priority, self.step_s * part, order, change)
        if found_s == NEVER:
            assert whole_s >= self.step_s * part * (1 - 1e-9)
            return change.begin
        assert (found_s, order.tolist()) == (whole_s, whole.tolist())
        if self.chance.random() < 0.7:
            self.on, self.priority, self.order, self.step_s = on, priority, order, found_s
            accept(self.tables, self.course, change.begin, on, order)
        return change.begin


@given(
    layer_graphs(pins=False),
    clusters(),
    st.randoms(use_true_random=False),
    st.sampled_from((1.001, 1.1, NEVER)),
    st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_small_graphs(graph: LayerGraph, cluster: Cluster, chance: Random, part: float, host: bool) -> None:
    """Of any kind, with a busy host or without one; changes are accepted or not."""
    graph = uneven(graph, chance, host=host)
    walk = Walk(graph, replace(cluster, launch_s=0.3) if host else cluster, chance)
    for _ in range(8 if walk.layers else 0):
        walk.go_on(part)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("reception", ["free", "serial"])
def test_a_larger_graph(training: bool, reception: str) -> None:
    """A hundred layers: many changes begin at kept states, early and late ones."""
    graph = layered(100, seed=3, travel=3, training=training)
    cluster = replace(cluster_for(graph, 3), reception=reception)
    walk = Walk(graph, cluster, Random(0))
    begun = {walk.go_on(1.02) for _ in range(300)}
    assert begun >= set(range(KEPT - 1))


def test_the_critical_chain() -> None:
    """What the long branch consists of, from the end; not the short branch."""
    graph = graph_of(
        {"a": {"forward_s": 1}, "long": {"forward_s": 9}, "short": {"forward_s": 2}, "b": {"forward_s": 1}},
        [("a", "long"), ("a", "short"), ("long", "b"), ("short", "b")],
    )
    walk = Walk(graph, cluster_of(999, 999, link=BYTE_A_SECOND), Random(0))
    critical = Critical.of(walk.tables)
    length = follow(walk.tables, walk.course, walk.on, walk.order, critical)
    names = [walk.problem.indexed.names[layer] for layer in critical.chain[:length]]
    assert names == ["b", "long", "a"]
