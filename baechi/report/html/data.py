"""What the page's pictures show, as data for its scripts: times in microseconds, sizes in bytes."""

from collections.abc import Sequence
from typing import Any

from baechi.records.cluster import HOST
from baechi.records.plan import Plan
from baechi.records.timeline import Span, Timeline
from baechi.report.critical import Cause, Stretch, waits
from baechi.report.facts import Facts
from baechi.report.html.tree import tree
from baechi.report.trace import AROUND

PHASES = ("forward", "backward", "other")
CAUSES: tuple[Cause, ...] = ("start", "data", "queue", "turn")


def page_data(facts: Facts) -> dict[str, Any]:
    """The data of all pictures of a page."""
    plan = facts.plan
    names = list(plan.graph)
    timelines = [_timeline("predicted", facts, plan.timeline, facts.path, names)]
    if facts.measured is not None:
        timelines.append(_timeline("measured", facts, facts.measured, facts.measured_path, names))
    return {
        "devices": [
            {"name": device.name, "kind": device.kind, "limit": device.memory_bytes}
            for device in plan.cluster.devices
        ],
        "timelines": timelines,
        "nodes": [_node(plan, name) for name in plan.graph],
        "edges": _edges(plan),
        "tree": tree(plan.graph, list(plan.graph), plan.device_of).body(),
        "names": names,  # the nodes', then those that only timelines have
    }


def us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)


def _node(plan: Plan, name: str) -> dict[str, Any]:
    """A node of the graph; its device by number, -1 of an input."""
    graph, costs = plan.graph, plan.graph.costs(name)
    node: dict[str, Any] = {
        "kind": costs.kind,
        "device": -1,
        "type": str(costs.type or ""),
    }
    if name in plan.device_of:
        device = plan.cluster.device(plan.device_of[name])
        node["device"] = plan.cluster.names.index(device.name)
        node["forward"] = us(graph.seconds(name, "forward_s", device.kind, device.speed))
        if graph.training:
            node["backward"] = us(graph.seconds(name, "backward_s", device.kind, device.speed))
        node["weights"] = float(costs.param_bytes + costs.buffer_bytes)
        node["output"] = float(costs.output_bytes)
    return node


def _edges(plan: Plan) -> list[list[float]]:
    place = {name: index for index, name in enumerate(plan.graph)}
    edges = [(source, target, plan.graph.edge_costs(source, target)) for source, target in plan.graph.edges]
    return [
        [place[source], place[target], -1 if costs.order_only else costs.bytes]
        for source, target, costs in edges
    ]


def _timeline(
    name: str, facts: Facts, timeline: Timeline, path: Sequence[Stretch], names: list[str]
) -> dict[str, Any]:
    """A timeline in rows; names that are no node's are put behind `names`."""
    plan = facts.plan
    rows, row_of = numbered_rows(plan, timeline)
    places = {layer: place for place, layer in enumerate(names)}
    critical = {id(stretch.span) for stretch in path}
    causes = waits(plan, timeline)
    index = {id(span): number for number, span in enumerate(timeline.spans)}
    spans = []
    for number, span in enumerate(timeline.spans):
        cause, before = causes.get(id(span), ("start", None))
        layer = span.layer or AROUND
        if layer not in places:
            places[layer] = len(names)
            names.append(layer)
        spans.append(
            [
                row_of[number],
                places[layer],
                us(span.start_s),
                us(span.end_s),
                PHASES.index(span.phase),
                span.size_bytes,
                int(id(span) in critical),
                span.where if span.kind == "transfer" else "",
                CAUSES.index(cause),
                -1 if before is None else index[id(before)],
            ]
        )
    return {
        "name": name,
        "step": us(timeline.makespan_s),
        "end": us(max([span.end_s for span in timeline.spans], default=0.0)),
        "rows": rows,
        "spans": spans,
        "peaks": [timeline.peak_bytes.get(device, 0) for device in plan.cluster.names],
        "live": [
            [[us(time_s), size] for time_s, size in timeline.live_bytes.get(device, ())]
            for device in plan.cluster.names
        ],
    }


def numbered_rows(plan: Plan, timeline: Timeline) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows of a timeline by device, and by span the number of its row."""
    rows = _rows(plan, timeline)
    numbers = {row: number for number, row in enumerate(rows)}
    shown = [{"device": _number(plan, device), "name": device, "what": what} for device, what in rows]
    return shown, [numbers[_row(plan, span)] for span in timeline.spans]


def _number(plan: Plan, device: str) -> int:
    return plan.cluster.names.index(device) if device in plan.cluster.names else -1


def _rows(plan: Plan, timeline: Timeline) -> list[tuple[str, str]]:
    """By device: where it computes, then where it receives; the host last."""
    used = {_row(plan, span) for span in timeline.spans}
    used |= {(device, "") for device in plan.cluster.names}
    order = {device: place for place, device in enumerate((*plan.cluster.names, HOST))}
    return sorted(used, key=lambda row: (order.get(row[0], len(order)), row))


def _row(plan: Plan, span: Span) -> tuple[str, str]:
    """The row of a span: its device, and `""` for computing or the label of the receiving row."""
    source, travels, target = span.where.partition(">")
    if not travels:
        return source, ""
    return target, f"from {source}" if plan.cluster.reception == "free" else "receives"
