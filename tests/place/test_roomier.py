"""Parts of full devices go to emptier ones, where the step hardly notices."""

from collections.abc import Sequence
from itertools import pairwise

from place.graphs import cluster_of, graph_of

from baechi.place.evaluation import Attempt, Evaluated
from baechi.place.problem import Problem
from baechi.place.roomier import roomier
from baechi.records import Link
from baechi.verbs.plans import place

LAYERS = "abcdefgh"


class World:
    """Eight layers in a row, of ten bytes each; a cut costs a part of the step."""

    def __init__(self, *memory_bytes: int, cut_s: float = 0.01, pins: dict[str, str] | None = None) -> None:
        nodes = {name: {"forward_s": 1.0, "param_bytes": 10} for name in LAYERS}
        for name, device in (pins or {}).items():
            nodes[name]["pin"] = device  # type: ignore[assignment]
        edges = [(one, other, 1) for one, other in pairwise(LAYERS)]
        self.cut_s, self.asked = cut_s, 0
        self.problem = Problem(graph_of(nodes, edges), cluster_of(*memory_bytes))

    def check(self, device_of: Sequence[int], order: Sequence[int]) -> Evaluated:
        """Ten bytes a layer; ten seconds, and what cuts cost."""
        self.asked += 1
        cuts = sum(one != other for one, other in pairwise(device_of))
        peaks = tuple(10 * list(device_of).count(device) for device in self.problem.devices)
        return Evaluated(tuple(device_of), tuple(order), 10 + cuts * self.cut_s, peaks)

    def relieved(self, device_of: str) -> str:
        """Where layers lie afterwards; nothing if they stay."""
        start = self.check([int(device) for device in device_of], range(len(LAYERS)))
        found = roomier(self.problem, self.check, Attempt("full", start), start.step_s)
        return "".join(str(device) for one in found for device in one.found.device_of)


def test_half_of_a_full_device_moves() -> None:
    assert World(85, 85).relieved("00000000") == "00001111"


def test_one_device_after_the_other() -> None:
    """Two full devices, two empty ones: each full one gives a half."""
    found = World(42, 42, 42, 42).relieved("00001111")
    assert sorted(found.count(device) for device in "0123") == [2, 2, 2, 2]


def test_unequal_devices_are_filled_to_equal_parts() -> None:
    assert World(85, 170).relieved("00000000").count("1") == 6


def test_the_step_stays() -> None:
    assert World(85, 85, cut_s=0.2).relieved("00000000") == ""


def test_pinned_layers_stay() -> None:
    found = World(85, 85, pins={name: "d0" for name in "efgh"}).relieved("00000000")
    assert found == "11110000"


def test_enough_room_is_left_alone() -> None:
    world = World(100, 100)
    assert world.relieved("00000000") == "" and world.asked == 1


def test_a_forbidden_device_stays_empty() -> None:
    assert World(85, 0).relieved("00000000") == ""


def test_auto_leaves_room() -> None:
    """One device would do, and be nearly full: half of it goes to the other one, for a transfer."""
    nodes = {name: {"forward_s": 1.0, "param_bytes": 10} for name in LAYERS}
    graph = graph_of(nodes, [(one, other, 1) for one, other in pairwise(LAYERS)])
    cluster = cluster_of(85, 85, link=Link(latency_s=1e-3, bytes_per_s=1e9))
    plan = place(graph, cluster)
    assert max(plan.timeline.peak_bytes.values()) < 60 and plan.timeline.makespan_s < 8.08
