"""What differs between two plans."""

import json
from dataclasses import replace

from place.graphs import branches, chain, cluster_of

from baechi.records import Plan
from baechi.report.difference import Difference
from baechi.report.facts import Facts


def difference(one: Plan, other: Plan) -> Difference:
    return Difference(Facts(one), Facts(other), ("one", "other"))


def chained(*on_second: str, **rest: int) -> Plan:
    graph = chain(4)
    where = {name: "d1" if name in on_second else "d0" for name in graph.placed()}
    return Plan(graph, cluster_of(99, 99), where)


def texts(found: Difference) -> str:
    return " ".join(f"{table.title} {table.rows} {table.note}" for table in found.tables())


def test_the_same() -> None:
    """Two equal plans: the same time, nothing moved."""
    found = difference(chained(), chained())
    assert found.sentence == "one and other take the same time (4.00 s)."
    assert found.moved == {} and found.only == ([], []) and found.reordered == 0
    assert "All layers that both have lie on the same devices." in texts(found)


def test_moved() -> None:
    """What lies elsewhere, by device before and after; the step and the peaks of both."""
    found = difference(chained("l1"), chained("l3", "l2"))
    assert found.moved == {("d1", "d0"): ["l1"], ("d0", "d1"): ["l2", "l3"]}
    assert found.sentence == "other is faster than one by 33 % (one, other: 12.00 s and 8.00 s)."
    assert "('d0', 'd1', '2', 'l2, l3')" in texts(found)


def test_another_order() -> None:
    """The same layers in another order are told."""
    graph = branches(2, 1)
    plan = Plan(graph, cluster_of(99), dict.fromkeys(graph.placed(), "d0"), ("fork", "b0.0", "b1.0", "join"))
    found = difference(plan, replace(plan, order=("fork", "b1.0", "b0.0", "join")))
    assert found.reordered == 1 and "the same layers in another order: 1." in texts(found)


def test_other_models_and_devices() -> None:
    """Plans of different models on different clusters: what only one has is counted."""
    graph = chain(2)
    small = Plan(graph, cluster_of(50), dict.fromkeys(graph.placed(), "d0"))
    found = difference(chained("l3"), small)
    assert found.only == (["l2", "l3"], []) and "functional ops in one only: 2." in texts(found)
    assert "('d1', '19 B', '19 %', '-', '-')" in texts(found)
    body = json.loads(found.to_json())
    assert body["only"] == [["l2", "l3"], []] and body["step_s"] == [8, 2]
