"""A plan is checked when built, complete in its file, and goes to and from a device map."""

import copy
import pickle

import networkx as nx
import pytest

from baechi.errors import PlanError, RecordError
from baechi.records import Candidate, Cluster, LayerGraph, Plan


def diamond() -> LayerGraph:
    """x -> enc.a -> {enc.b, dec.c} -> dec.d, with a piece of glue before d."""
    graph = nx.DiGraph(training=True)
    graph.add_node("input:x", kind="input")
    for name in ("enc.a", "enc.b", "dec.c", "dec.d"):
        graph.add_node(name, module=name, forward_s=1.0, param_bytes=4)
    graph.add_node("glue:dec/add#0", kind="glue", module="dec", colocate="enc.b")
    graph.nodes["enc.b"]["colocate"] = "enc.b"
    edges = ["input:x enc.a", "enc.a enc.b", "enc.a dec.c", "enc.b glue:dec/add#0", "dec.c glue:dec/add#0"]
    graph.add_edges_from([edge.split() for edge in [*edges, "glue:dec/add#0 dec.d"]], bytes=8)
    return LayerGraph.from_networkx(graph)


def plan(**devices: str) -> Plan:
    where = {
        "enc.a": "cpu:0",
        "enc.b": "cpu:0",
        "glue:dec/add#0": "cpu:0",
        "dec.c": "cpu:1",
        "dec.d": "cpu:1",
    }
    order = ("enc.a", "enc.b", "dec.c", "glue:dec/add#0", "dec.d")
    return Plan(diamond(), Cluster.virtual(2), {**where, **devices}, order)


def test_order_on_a_device() -> None:
    """A device runs its layers in the plan's order; without one, in code order."""
    assert plan().order_on("cpu:1") == ("dec.c", "dec.d")
    assert Plan(diamond(), Cluster.virtual(2), plan().device_of).order == plan().order


def test_faults_are_gathered() -> None:
    """A bad plan raises once, with every fault."""
    with pytest.raises(PlanError) as caught:
        Plan(
            diamond(),
            Cluster.virtual(2),
            {"enc.a": "gpu", "enc.b": "cpu:0", "no": "cpu:0"},
            ("dec.d", "enc.a"),
        )
    text = str(caught.value)
    for fault in (
        "enc.a is on 'gpu'",
        "dec.c has no device",
        "no is no layer",
        "misses enc.b",
        "share a device",
    ):
        assert fault in text
    assert len(caught.value.faults) >= 6


def test_order_against_an_edge() -> None:
    """An order that runs a layer before what it depends on is refused."""
    order = ("enc.b", "enc.a", "dec.c", "glue:dec/add#0", "dec.d")
    with pytest.raises(PlanError, match=r"runs enc\.b before enc\.a"):
        Plan(diamond(), Cluster.virtual(2), plan().device_of, order)


def test_pins_and_groups_hold() -> None:
    """A torn group and a pin that is not kept are refused."""
    graph = diamond()
    graph.nodes["dec.d"]["pin"] = "cpu:0"
    with pytest.raises(PlanError, match=r"dec\.d is pinned to cpu:0"):
        Plan(graph, Cluster.virtual(2), plan().device_of)
    with pytest.raises(PlanError, match="must share a device"):
        plan(**{"enc.b": "cpu:1"})


def test_round_trip(tmp_path: object) -> None:
    """A plan file holds graph, cluster and candidates, and gives the same plan back."""
    made = Plan(
        diamond(), Cluster.virtual(2), plan().device_of, candidates=(Candidate("m-etf", 1.5, {"cpu:0": 3}),)
    )
    made.save(f"{tmp_path}/p.json")
    back = Plan.load(f"{tmp_path}/p.json")
    assert back.to_json() == made.to_json()
    assert (back.cluster, back.candidates, back.order) == (made.cluster, made.candidates, made.order)
    assert pickle.loads(pickle.dumps(made)).to_json() == copy.deepcopy(made).to_json() == made.to_json()


def test_files_of_other_kinds(tmp_path: object) -> None:
    """What is no plan, or cut short, or of another schema, says so."""
    for text, fault in (
        ("{", "no JSON"),
        (Cluster.virtual(1).to_json(), "holds no baechi plan"),
        (plan().to_json().replace('"schema": 1', '"schema": 99'), "schema 99"),
    ):
        with pytest.raises(RecordError, match=fault):
            Plan.from_json(text)


def test_device_map_both_ways() -> None:
    """Prefixes place layers, the longest one counts, and the shortest map comes back."""
    made = Plan.from_device_map(diamond(), Cluster.virtual(2), {"": 0, "dec": 1, "dec.c": "cpu:0"})
    assert made.device_of["dec.d"] == "cpu:1"
    assert made.to_device_map() == {"enc": "cpu:0", "dec.c": "cpu:0", "dec.d": "cpu:1"}
    again = Plan.from_device_map(diamond(), Cluster.virtual(2), made.to_device_map())
    assert again.device_of == made.device_of
    assert Plan.from_device_map(diamond(), Cluster.virtual(2), {"": 1}).to_device_map() == {"": "cpu:1"}


def test_device_map_faults() -> None:
    """A layer with weights that no name covers, and a device that is not there, are refused together."""
    with pytest.raises(PlanError) as caught:
        Plan.from_device_map(diamond(), Cluster.virtual(2), {"enc": 0, "dec.c": 2})
    assert "no name of the map covers dec.d" in str(caught.value)
    assert "'dec.c' is mapped to 2: the devices are cpu:0, cpu:1" in str(caught.value)


def test_timeline_is_simulated_when_asked_for() -> None:
    """The predicted step comes with the plan, once."""
    made = plan()
    assert made.timeline is made.timeline
    assert made.timeline.makespan_s > 0
