"""Defects of the original placers that must not come back, by their numbers in the project's notes."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from place.checker import check
from place.every import EVERY, plan_by
from place.graphs import FREE, chain, cluster_of, graph_of, layered

from baechi.errors import PlacementError
from baechi.place import find
from baechi.place.listing import availability
from baechi.records import Link
from baechi.simulate import simulate

LIST_SCHEDULING = ("m-etf", "m-sct")
ORIGINALS = ("m-topo", *LIST_SCHEDULING)

PLANS = """
import sys
from place.every import EVERY, plan_by
from place.graphs import CLUSTERS, HAND_MADE, cluster_of, layered
worlds = [(graph, CLUSTERS["unequal devices"]) for graph in HAND_MADE.values()]
worlds += [(layered(40, seed, travel=2), cluster_of(*[10**9] * 3)) for seed in range(2)]
found = [plan_by(placer, graph, cluster).to_json() for placer in EVERY for graph, cluster in worlds]
"""
PRINT_PLANS = PLANS + "import hashlib; print(hashlib.sha256(''.join(found).encode()).hexdigest())"


def in_another_process(code: str, hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_every_number() -> None:
    """P1 to P15 have a test each: P8 and P9 beside the favourites of m-SCT, the others here."""
    found = [
        re.findall(r"def test_p(\d+)_", file.read_text()) for file in Path(__file__).parent.rglob("*.py")
    ]
    assert {int(number) for numbers in found for number in numbers} == set(range(1, 16))


@pytest.mark.parametrize("placer", LIST_SCHEDULING)
def test_p1_zero_time(placer: str) -> None:
    """A layer of no time used to leave its device free, and its children were never ready."""
    graph = graph_of({"a": {}, "b": {"forward_s": 1}, "c": {}}, [("a", "b", 1), ("b", "c", 1)])
    plan = find(placer)(graph, cluster_of(99, 99))
    check(plan)
    assert simulate(plan).makespan_s == 1


@pytest.mark.parametrize("placer", ORIGINALS)
def test_p2_no_device_has_room(placer: str) -> None:
    """A layer that fits nowhere used to end in a bare assertion."""
    with pytest.raises(PlacementError, match="layer a is larger than every device"):
        find(placer)(graph_of({"a": {"param_bytes": 100}}), cluster_of(99, 99))


@pytest.mark.parametrize("training", [False, True])
def test_p3_one_copy_for_two_readers(training: bool) -> None:
    """A tensor that two layers of a device read used to be charged twice there, in bytes and time."""
    nodes = {"a": {"pin": "d0", "forward_s": 1}, "b": {"pin": "d1"}, "c": {"pin": "d1"}}
    graph = graph_of(nodes, [("a", "b", 4), ("a", "c", 4)], training=training)
    plan = find("m-etf")(graph, cluster_of(4, 4))
    timeline = simulate(plan)
    assert timeline.peak_bytes["d1"] == 4
    assert timeline.counters["transfer_bytes"] == 4 * (1 + training)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("placer", ORIGINALS)
def test_p4_copies_beside_temporary_bytes(placer: str, training: bool) -> None:
    """The peak used to leave out what a layer received while it needs its temporary bytes: 6, not 8."""
    nodes = {"a": {"pin": "d0", "output_bytes": 2}, "b": {"pin": "d1", "temp_bytes": 6}}
    graph = graph_of(nodes, [("a", "b", 2)], training=training)
    plan = find(placer)(graph, cluster_of(9, 8))
    check(plan)
    assert simulate(plan).peak_bytes["d1"] == 8
    with pytest.raises(PlacementError):
        find(placer)(graph, cluster_of(9, 7))


@pytest.mark.parametrize("placer", ORIGINALS)
def test_p5_full_to_the_last_byte(placer: str) -> None:
    """A device exactly full used to be refused when the last layer received something."""
    nodes = {"a": {"pin": "d0", "output_bytes": 6}, "cat": {"pin": "d1", "output_bytes": 6}}
    plan = find(placer)(graph_of(nodes, [("a", "cat", 6)]), cluster_of(6, 12))
    assert simulate(plan).peak_bytes == {"d0": 6, "d1": 12}


def test_p6_real_memory() -> None:
    """m-TOPO's cap used to be above what the devices have."""
    graph = graph_of({name: {"param_bytes": 10} for name in "abc"})
    with pytest.raises(PlacementError):
        find("m-topo")(graph, cluster_of(5))
    plan = find("m-topo")(graph, cluster_of(10, 10, 10))
    assert max(simulate(plan).peak_bytes.values()) == 10


def test_p7_same_bytes_in_cap_and_walk() -> None:
    """The cap used to leave out temporary bytes and the walk to count them: nothing was placed."""
    graph = graph_of({name: {"param_bytes": 1, "temp_bytes": 60} for name in "abcd"})
    plan = find("m-topo")(graph, cluster_of(100, 100))
    check(plan)
    assert not plan.candidates


@pytest.mark.full
def test_p10_same_plan_in_every_process() -> None:
    """Orders used to follow memory addresses: three processes gave three plans."""
    here: dict[str, list[str]] = {}
    exec(PLANS, here)
    assert len(set(here["found"])) > len(EVERY)
    expected = hashlib.sha256("".join(here["found"]).encode()).hexdigest()
    assert {in_another_process(PRINT_PLANS, seed) for seed in ("1", "2")} == {expected}


def test_p10_code_order() -> None:
    """Where code order is topological, it is the order."""
    graph = chain(12)
    assert find("m-topo")(graph, cluster_of(999, 999)).order == tuple(f"l{i}" for i in range(12))


def test_p11_ties_by_topological_order() -> None:
    """Layers that could start at the same time used to go by accident of insertion."""
    graph = graph_of({name: {"forward_s": 1} for name in "cab"}, [("a", "c", 0)])
    plan = find("m-etf")(graph, cluster_of(99, link=FREE))
    assert plan.order == ("a", "c", "b")


@pytest.mark.parametrize("placer", LIST_SCHEDULING)
def test_p12_work_for_each_layer(placer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision used to look at all ready layers on all devices: 36 s for 2,000 layers, 128 wide.

    Counted is how often the arrival of a layer's inputs is worked out, four times as many layers on.
    """
    asked = 0
    original = availability.Availability.inputs_there_s

    def counted(self: availability.Availability, layer: int, device: int) -> float:
        nonlocal asked
        asked += 1
        return original(self, layer, device)

    monkeypatch.setattr(availability.Availability, "inputs_there_s", counted)
    for_each = []
    for layers in (500, 2000):
        asked = 0
        find(placer)(layered(layers, 3, travel=1, width=32), cluster_of(*[10**9] * 4))
        for_each.append(asked / layers)
    assert for_each[1] <= 1.5 * for_each[0]
    assert for_each[1] <= 4 * 4  # devices


@pytest.mark.full
def test_p13_never_worse_than_one_device() -> None:
    """With transfers five times as long as layers, list schedules used to end after one device would."""
    cluster, worse = cluster_of(*[10**9] * 4), 0
    for seed in range(60):
        graph = layered(40, seed, travel=5)
        alone_s = plan_by("single", graph, cluster).timeline.makespan_s
        worse += any(plan_by(name, graph, cluster).timeline.makespan_s > alone_s for name in LIST_SCHEDULING)
        assert plan_by("auto:0", graph, cluster).timeline.makespan_s <= alone_s
    assert worse, "then nothing was tried here"


@pytest.mark.parametrize("placer", [name for name in EVERY if name not in ("single", "auto:1")])
def test_p14_tight_memory(placer: str) -> None:
    """With a quarter of memory to spare, 40 layers on 4 devices used to be placed 2 to 40 times of 100."""
    for seed in range(20):
        graph = layered(40, seed, training=seed % 2 == 1)
        memory_bytes = int(1.25 * graph.total("param_bytes") / 4)
        check(plan_by(placer, graph, cluster_of(*[memory_bytes] * 4, link=Link(0.1, 10.0))))


@pytest.mark.parametrize("placer", [name for name in EVERY if name not in ("single", "auto:1")])
def test_p15_each_device_by_its_memory(placer: str) -> None:
    """Devices used to be alike, with memory from a constant: here one has ten times that of another."""
    for seed in range(10):
        graph = layered(40, seed)
        whole = graph.total("param_bytes")
        check(plan_by(placer, graph, cluster_of(*[int(whole * part) for part in (0.6, 0.5, 0.2, 0.06)])))


@pytest.mark.parametrize("placer", ["m-etf", "m-sct", "auto:0", "auto:1"])
def test_p15_each_device_by_its_speed(placer: str) -> None:
    """Work goes to devices by their speed: 40 layers that wait for nobody, on speeds 1, 2 and 5."""
    graph = graph_of({f"l{number}": {"forward_s": 1} for number in range(40)})
    plan = plan_by(placer, graph, cluster_of(99, 99, 99, speeds=(1, 2, 5)))
    check(plan)
    assert [len(plan.order_on(device)) for device in plan.cluster.names] == [5, 10, 25]


def test_no_torch() -> None:
    """Placing and simulating load no torch, whoever places."""
    assert in_another_process(f"{PLANS}print('torch' in sys.modules)", "0") == "False"
