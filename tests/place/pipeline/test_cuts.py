"""Cuts for a pipeline: the slowest part as fast as any contiguous cut's, within memory."""

from itertools import combinations_with_replacement, pairwise
from random import Random

import networkx as nx
import pytest

from baechi.place.pipeline import cuts
from baechi.place.problem import Problem
from baechi.records import Cluster, Device, LayerGraph


def chain(times: list[float], **more: object) -> LayerGraph:
    graph = nx.DiGraph(training=True)
    for number, seconds in enumerate(times):
        graph.add_node(f"l{number}", forward_s=seconds, backward_s=2 * seconds, **more)
        if number:
            graph.add_edge(f"l{number - 1}", f"l{number}", bytes=1)
    return LayerGraph.from_networkx(graph)


def slowest(times: list[float], ends: tuple[int, ...], speeds: list[float]) -> float:
    edges = [0, *ends, len(times)]
    parts = [sum(times[a:b]) for a, b in pairwise(edges)]
    return max(part / speed for part, speed in zip(parts, speeds, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_no_contiguous_cut_is_better(seed: int) -> None:
    """Against all cuts of up to ten layers over three devices of any speed, in their order."""
    chance = Random(seed)
    times = [chance.randint(1, 9) / 4 for _ in range(chance.randint(3, 10))]
    speeds = [chance.choice([1.0, 1.0, 2.0]) for _ in range(3)]
    cluster = Cluster(tuple(Device(f"d{n}", memory_bytes=1, speed=speed) for n, speed in enumerate(speeds)))
    problem = Problem(chain(times), cluster)
    found = {name: device_of for name, device_of in reversed(list(cuts(problem, 8)))}
    made = found["contiguous over 3"]
    cost = max(sum([times[n] for n, device in enumerate(made) if device == d]) / speeds[d] for d in range(3))
    every = [slowest(times, ends, speeds) for ends in combinations_with_replacement(range(len(times) + 1), 2)]
    assert list(made) == sorted(made) or speeds != sorted(speeds)
    assert cost <= min(every) * (1 + 1e-9)


def test_virtual_stages_go_round() -> None:
    """With two rounds each device has two parts."""
    cluster = Cluster(tuple(Device(f"d{n}", memory_bytes=1) for n in range(2)))
    found = dict(cuts(Problem(chain([1.0] * 8), cluster), 8))
    assert found["contiguous over 2, 2 virtual stages"] == (0, 0, 1, 1, 0, 0, 1, 1)
    assert found["contiguous over 2"] == (0, 0, 0, 0, 1, 1, 1, 1)
    assert found["contiguous over 1"] == (0,) * 8


def test_there_and_back() -> None:
    """The last device has two parts in a row, the first one the first and the last."""
    cluster = Cluster(tuple(Device(f"d{n}", memory_bytes=1) for n in range(2)))
    found = dict(cuts(Problem(chain([1.0] * 8), cluster), 8))
    assert found["contiguous over 2, 2 virtual stages, there and back"] == (0, 0, 1, 1, 1, 1, 0, 0)


def test_memory_by_microbatches_in_flight() -> None:
    """The first device holds two microbatches, so it gets fewer layers."""
    cluster = Cluster(tuple(Device(f"d{n}", memory_bytes=60) for n in range(2)))
    found = dict(cuts(Problem(chain([1.0] * 8, saved_bytes=10), cluster), 8))
    assert found["contiguous over 2"] == (0, 0, 0, 1, 1, 1, 1, 1)
    assert "contiguous over 1" not in found


def test_what_backward_does_not_keep_counts_once() -> None:
    """As where modules run again: what layers pass on is gone before the next microbatch."""
    cluster = Cluster(tuple(Device(f"d{n}", memory_bytes=45) for n in range(2)))
    found = dict(cuts(Problem(chain([1.0] * 8, output_bytes=10), cluster), 8))
    assert found["contiguous over 2"] == (0, 0, 0, 0, 1, 1, 1, 1)
    assert "contiguous over 1" not in found


def test_groups_and_pins() -> None:
    """Layers that share a device stay together, and a pin comes before the cut."""
    graph = chain([1.0] * 4)
    graph.nodes["l0"]["colocate"] = graph.nodes["l3"]["colocate"] = "tied"
    graph.nodes["l1"]["pin"] = "d1"
    cluster = Cluster(tuple(Device(f"d{n}", memory_bytes=1) for n in range(2)))
    problem = Problem(graph, cluster)
    found = dict(cuts(problem, 4))["contiguous over 2"]
    where = {name: found[problem.indexed.group_of[n]] for n, name in enumerate(problem.indexed.names)}
    assert where == {"l0": 0, "l3": 0, "l1": 1, "l2": 1}
