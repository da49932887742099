"""Annealing and partitions in bands: never worse than where they begin, within memory, and no chance."""

from collections.abc import Sequence
from functools import partial
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import examples
from place.checker import check_devices, check_order
from place.graphs import BYTE_A_SECOND, FREE, branches, chain, cluster_of, graph_of
from place.strategies import clusters, layer_graphs

from baechi.errors import PlacementError
from baechi.place.bottom_level import bottom_level_order, bottom_levels
from baechi.place.evaluation import Evaluated, evaluate, rehearsed
from baechi.place.problem import ANYWHERE, Problem
from baechi.place.search import annealing
from baechi.place.search.annealing import Annealing
from baechi.place.search.bands import COUNTS, PRICES, partitions
from baechi.place.search.estimate import NEVER, Placement, Times, estimate
from baechi.place.search.room import Room, move, takes, unseen_bytes
from baechi.place.search.tables import Tables
from baechi.records import Cluster, LayerGraph
from baechi.simulate import Rehearsal, simulate


def searched(
    graph: LayerGraph, cluster: Cluster, device_of: list[int], most: int, enough_s: float = 0.0
) -> tuple[Evaluated, Annealing] | None:
    """A start and a search that is over; None if the start does not fit."""
    problem, rehearse = Problem(graph, cluster), Rehearsal(graph, cluster)
    start = evaluate(problem, rehearse, device_of)
    if start is None:
        return None
    search = Annealing(problem, Tables.of(problem), partial(rehearsed, problem, rehearse), start)
    search.run(most, enough_s)
    return start, search


def random_start(graph: LayerGraph, cluster: Cluster, chance: Random) -> list[int]:
    """A device for every group, as pinned."""
    pins = Problem(graph, cluster).pins
    return [chance.randrange(len(cluster)) if pin == ANYWHERE else pin for pin in pins]


@given(layer_graphs(), clusters(), st.randoms(use_true_random=False))
@settings(max_examples=examples(150), deadline=None)
def test_never_worse(graph: LayerGraph, cluster: Cluster, chance: Random) -> None:
    """What is found is a plan, keeps memory, takes no longer than the start, and is found again."""
    try:
        device_of = random_start(graph, cluster, chance)
    except PlacementError:
        return
    done, again = (searched(graph, cluster, device_of, 60) for _ in range(2))
    if done is None or again is None:
        return
    start, search = done
    found = search.best
    assert found == again[1].best
    assert found.step_s <= start.step_s
    assert search.tried <= 60
    plan = Problem(graph, cluster).plan("search", found.device_of, found.order)
    check_devices(plan)
    check_order(plan)
    timeline = simulate(plan)
    assert timeline.makespan_s == found.step_s
    assert tuple(timeline.peak_bytes.values()) == found.peak_bytes
    assert all(peak <= d.memory_bytes for peak, d in zip(found.peak_bytes, cluster.devices, strict=True))


def test_finds_what_is_planted() -> None:
    """Six long branches on one of three devices: spread two by two, a step is three times shorter."""
    graph = branches(width=6, depth=1)
    for branch in range(6):
        graph.nodes[f"b{branch}.0"]["forward_s"] = 30
    done = searched(graph, cluster_of(999, 999, 999, link=FREE), [0] * 8, 2000)
    assert done is not None
    assert done[1].best.step_s == 1 + 2 * 30 + 1


def test_stops_when_nothing_is_better() -> None:
    """A step that is as short as any can be is not searched any further."""
    done = searched(chain(6), cluster_of(999, 999, link=FREE), [0] * 6, 500, enough_s=6)
    assert done is not None
    assert done[1].tried == 0


def test_turns_the_order() -> None:
    """A longer way to go behind a device that is busy anyway, and a shorter one to one that waits."""
    nodes = {
        "a": {"forward_s": 4, "pin": "d0"},
        "b": {"forward_s": 4, "pin": "d0"},
        "busy": {"forward_s": 20, "pin": "d1"},
        "after a": {"forward_s": 10, "pin": "d1"},
        **{f"after b {index}": {"forward_s": 9, "pin": "d2"} for index in range(3)},
    }
    edges = [("a", "after a", 0), *[("b", f"after b {index}", 0) for index in range(3)]]
    done = searched(graph_of(nodes, edges), cluster_of(99, 99, 99, link=FREE), [0, 0, 1, 1, 2, 2, 2], 200)
    assert done is not None
    assert done[0].step_s == 4 + 4 + 3 * 9
    assert done[1].best.step_s == 31


def test_memory_is_a_wall() -> None:
    """A device that is faster and too small gets as much as fits."""
    done = searched(chain(6), cluster_of(1000, 34, speeds=(1, 9), link=FREE), [0] * 6, 500)
    assert done is not None
    best = done[1].best
    assert 0 < best.peak_bytes[1] <= 34
    assert best.step_s < 6


@given(layer_graphs(), clusters(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_partitions(graph: LayerGraph, cluster: Cluster, chance: Random) -> None:
    """One for each count and price; pins stay, and nothing moves where it has no room."""
    try:
        start = random_start(graph, cluster, chance)
    except PlacementError:
        return
    problem = Problem(graph, cluster)
    before = list(start)
    found = list(partitions(problem, start, 50))
    if len(cluster) < 2 or all(pin != ANYWHERE for pin in problem.pins):
        assert found == []
        return
    assert len(found) == len(COUNTS) * len(PRICES)
    assert found == list(partitions(problem, start, 50))
    for device_of in found:
        assert all(p in (ANYWHERE, d) for p, d in zip(problem.pins, device_of, strict=True))
        came = {device_of[g] for g in range(len(start)) if device_of[g] != start[g]}
        there = [[g for g, d in enumerate(device_of) if d == device] for device in problem.devices]
        for device in came:
            kept = sum([problem.group_bytes[g].permanent_bytes for g in there[device]])
            assert kept <= max(problem.memory_bytes[device], _kept(problem, start, device))
    assert start == before


def _kept(problem: Problem, device_of: list[int], device: int) -> int:
    return sum(
        [part.permanent_bytes for part, d in zip(problem.group_bytes, device_of, strict=True) if d == device]
    )


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("price", PRICES)
def test_bands_share_work(price: float) -> None:
    """Two chains side by side on two devices: at every price each device gets one of them."""
    graph = branches(width=2, depth=20)
    problem = Problem(graph, cluster_of(9999, 9999, link=BYTE_A_SECOND))
    found = list(partitions(problem, [0] * len(problem.indexed.members), 20_000))
    for device_of in found[PRICES.index(price) :: len(PRICES)]:
        levels, tables = np.array(bottom_levels(problem, device_of)), Tables.of(problem)
        placement = Placement(np.array(device_of), levels, np.arange(len(device_of)))
        assert estimate(tables, Times.of(tables), placement, NEVER) < 42


def test_room() -> None:
    """Bytes that stay add up, the most that one group needs on top counts once."""
    nodes = {f"l{i}": {"param_bytes": 10 * (i + 1), "temp_bytes": 5 * i} for i in range(3)}  # 10 20+5 30+10
    problem = Problem(graph_of(nodes), cluster_of(45, 45))
    room = Room.of(problem, [0, 0, 1])

    def fits(device: int, come: list[int], go: tuple[int, ...] = ()) -> bool:
        return bool(takes(room, device, np.array(come), len(come), np.array(go, np.int64), len(go)))

    assert not fits(1, [0])  # 30 + 10 + 10 > 45
    assert not fits(0, [2])
    assert not fits(0, [2], (1,))  # 10 + 30 + 10
    assert fits(0, [2], (0, 1))
    move(room, 1, 1)  # there is no room, and it moves all the same
    assert room.device_of.tolist() == [0, 1, 1]
    assert fits(0, [1])
    assert fits(1, [0], (1,))  # it gets emptier, full as it is


@given(layer_graphs(), clusters(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_what_a_glance_does_not_see(graph: LayerGraph, cluster: Cluster, chance: Random) -> None:
    """With what a simulation found beyond the glance, the glance is what the simulation found."""
    try:
        device_of = random_start(graph, cluster, chance)
    except PlacementError:
        return
    problem, rehearse = Problem(graph, cluster), Rehearsal(graph, cluster)
    found = rehearsed(problem, rehearse, device_of, bottom_level_order(problem, device_of))
    room = Room.of(problem, device_of, unseen_bytes(problem, found))
    left = [limit - peak for limit, peak in zip(problem.memory_bytes, found.peak_bytes, strict=True)]
    assert (room.free_bytes - room.tops_bytes).tolist() == left


@pytest.mark.parametrize(("eager", "most"), [(0, 30), (40_000, 2000)])
def test_a_hopeful_estimate(monkeypatch: pytest.MonkeyPatch, eager: int, most: int) -> None:
    """Where no step is as short as its estimate, no plan is simulated twice, and soon fewer of them."""
    monkeypatch.setattr(annealing, "_EAGER", eager)
    problem = Problem(branches(4, 6), cluster_of(999, 999))
    start = evaluate(problem, Rehearsal(problem.graph, problem.cluster), [0 for _ in problem.indexed.members])
    assert start is not None
    seen: list[tuple[int, ...]] = []

    def check(device_of: Sequence[int], order: Sequence[int]) -> Evaluated:
        seen.append((*device_of, *order))
        return Evaluated(tuple(device_of), tuple(order), start.step_s, start.peak_bytes)

    assert Annealing(problem, Tables.of(problem), check, start).run(2000).step_s == start.step_s
    assert 0 < len(set(seen)) == len(seen) < most
