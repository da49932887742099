"""A plan whose names would break a page that does not escape them, and a step of it."""

from dataclasses import replace

import networkx as nx
from place.graphs import branches, cluster_of

from baechi.records import LayerGraph, Plan, Timeline

ODD = """<script>alert("1")</script>&amp;$title\u2028'"""


def odd_plan() -> Plan:
    """Branches on two devices, whose middle layers lie in one module."""
    graph = branches(4, 4, training=True, model=f"Model {ODD}")
    names = {name: f"middle.{ODD}.{name}" if name[0] == "b" else name for name in graph}
    renamed = LayerGraph.from_networkx(nx.relabel_nodes(graph, names))
    where = {name: "d1" if "b1." in name or "b2." in name else "d0" for name in renamed}
    return Plan(renamed, cluster_of(400, 200), where)


def measured_step(plan: Plan) -> Timeline:
    """As if it had been run: a little slower, with an optimizer's step behind it."""
    predicted = plan.timeline
    slower = [replace(s, start_s=s.start_s * 1.1, end_s=s.end_s * 1.1) for s in predicted.spans]
    last_s = predicted.makespan_s * 1.1
    around = replace(
        slower[0], kind="compute", layer="", where="d0", start_s=last_s, end_s=last_s + 5, phase="other"
    )
    counters = {"deferred": 3, "forced": 1}
    return Timeline((*slower, around), last_s, {"d0": 390, "d1": 180}, counters)
