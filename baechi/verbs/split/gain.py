"""Split heavy layers of a chain over several devices, where steps get shorter by it.

    plan ─┬▶ each layer that takes long ──▶ split in 2, or over all devices ─┬▶ 3 % shorter? ──▶ that plan
          └▶ all layers with few weights ─▶ rows over all devices ───────────┘

Tries are simulated. Before a split plan stands in for the whole one, both are run dry. Nothing here needs
torch.
"""

import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from baechi.cost.indexed_graph import seconds_by_device
from baechi.errors import PlacementError, PlanError, ShardedTensorError
from baechi.records.cluster import Cluster
from baechi.records.device_map import ROOT
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts
from baechi.records.plan import Plan
from baechi.simulate import simulate
from baechi.split.costs import splits_of
from baechi.split.rewrite import cuts_weights, sizes_by_call, sizes_of, split
from baechi.split.spec import BatchSpec, LayerSpec, Sharding

logger = logging.getLogger(__name__)

LEAST_GAIN = 0.03
"""The part of a step that splitting has to save: what it adds to a plan and its run is not for less."""

_MOST_LAYERS = 2
"""Maximum number of layers that are tried, the heaviest first."""

_MOST_SHARDS = 2_048
"""Maximum number of shards of rows: each is a node, and all of them are placed, simulated and run dry."""

PlanFor = Callable[[LayerGraph], Plan]
Judge = Callable[[Plan], Plan]


def split_where_it_gains(
    graph: LayerGraph, cluster: Cluster, plan: Plan, quick: PlanFor, plan_for: PlanFor, judge: Judge
) -> Plan:
    """A plan with layers split, if its step is shorter by at least `LEAST_GAIN`; else the plan as it is."""
    if plan.graph.says("shard"):  # split since nothing fitted
        return plan
    whole_s = step_s = simulate(plan).makespan_s
    found: LayerGraph | None = None
    for layers in _ways(graph, cluster, whole_s * LEAST_GAIN):
        try:
            made = split(graph, layers)
            made_s = simulate(quick(made)).makespan_s
        except (PlacementError, PlanError, ShardedTensorError, ValueError):
            continue  # it is not that long, its weight is read elsewhere, or no such plan fits
        if made_s < min(step_s, whole_s * (1 - LEAST_GAIN)):
            step_s, found = made_s, made
    if found is None:
        return plan
    try:
        whole, parts = [one if one.dry is not None else judge(one) for one in (plan, plan_for(found))]
    except PlacementError:
        return plan
    whole_s, step_s = whole.timeline.makespan_s, parts.timeline.makespan_s
    if step_s > whole_s * (1 - LEAST_GAIN):
        return whole
    logger.info("split for a step of %.3g s in place of %.3g s", step_s, whole_s)
    return parts


def _ways(
    graph: LayerGraph, cluster: Cluster, least_s: float
) -> Iterator[Mapping[str, LayerSpec | Sharding]]:
    """What is tried to save so many seconds: by layer, how it is split."""
    if len(cluster.devices) < 2:
        return
    seconds = _seconds(graph, cluster)
    for layer in _heaviest(graph, seconds, least_s):
        for spec in _specs(graph, cluster, layer):
            yield {layer: spec}
    rows = _rows(graph)
    few = {layer: own for layer, own in seconds.items() if layer in rows}
    devices_s = [sum(column) for column in zip(*few.values(), strict=True)]
    if min(devices_s, default=0) < least_s or len(few) * len(cluster.devices) > _MOST_SHARDS:
        return
    for step in (1, -1):
        yield {layer: _by_speed(rows[layer], devices_s[::step], cluster.names[::step]) for layer in few}


def _rows(graph: LayerGraph) -> dict[str, int]:
    """By layer with few weights that can be split along rows, the rows of the example."""
    calls: dict[str, list[LayerCosts]] = {}
    for name, costs in graph.placed_costs():
        calls.setdefault(graph.module_of(name), []).append(costs)
    found = {}
    for layer, own in calls.items():
        made_bytes = sum([costs.output_bytes for costs in own])
        first = next((costs for costs in own if costs.kind == "layer" and not costs.unread), None)
        if first is None or layer in ("", ROOT):
            continue
        if any(sum(splits_of(costs).get("bytes", {}).values()) > made_bytes for costs in own):
            continue
        try:
            rows = sizes_by_call(first, layer).get("rows", 0)
        except PlanError:  # a rule refuses it
            continue
        if rows:
            found[layer] = rows
    return found


def _by_speed(rows: int, devices_s: Sequence[float], names: Sequence[str]) -> Sharding:
    """Rows for each device, the more the faster it is: whole ones, and none for one that is too slow."""
    ends = list(accumulate([1 / own_s for own_s in devices_s]))
    bounds = [0, *[round(rows * end / ends[-1]) for end in ends]]
    parts = [(stop - start, name) for (start, stop), name in zip(pairwise(bounds), names, strict=True)]
    sizes, devices = zip(*[(size, name) for size, name in parts if size], strict=True)
    return Sharding("rows", sizes, devices)


def _specs(graph: LayerGraph, cluster: Cluster, layer: str) -> Iterator[LayerSpec]:
    """Two shards and one a device: where the placer puts them, and on devices from the last to the first.

    A chain's other layers mostly lie on the first device. The shard beside them is issued last then, so what
    the others read is sent, and what they send back is waited for, without waiting for it.
    """
    dim, size = next(iter(sizes_of(graph, layer).items()))
    for number in sorted({2, len(cluster.devices)}):
        yield number
        yield BatchSpec({dim: -(-size // number)}, cluster.names[:number][::-1])


def _seconds(graph: LayerGraph, cluster: Cluster) -> dict[str, list[float]]:
    """By layer that can be split, how long it takes on each device."""
    seconds: dict[str, list[float]] = {}
    nodes = [name for name, costs in graph.placed_costs() if costs.splits is not None and not costs.unread]
    for way in ("forward_s", "backward_s"):
        for name, *own in zip(nodes, *seconds_by_device(graph, nodes, cluster.devices, way), strict=True):
            so_far = seconds.setdefault(graph.module_of(name), [0.0] * len(own))
            so_far[:] = map(operator.add, so_far, own)
    return seconds


def _heaviest(graph: LayerGraph, seconds: Mapping[str, Sequence[float]], least_s: float) -> Iterator[str]:
    """The layers that can be split and would save so many seconds if they took no time on one more device."""
    least = {name: min(own) * (1 - 1 / len(own)) for name, own in seconds.items()}
    heavy = [name for name in seconds if least[name] >= least_s and cuts_weights(graph, name)]
    heavy.sort(key=lambda module: -least[module])
    for module in heavy[:_MOST_LAYERS]:
        try:
            sizes_of(graph, module)
        except PlanError:  # a rule refuses it
            continue
        yield module
