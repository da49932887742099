"""Split the heaviest layers of a chain over several devices, where steps get shorter by it.

    plan ──▶ each layer that takes long ──▶ split in 2, or over all devices ──▶ 3 % shorter? ──▶ that plan

Tries are simulated. Before a split plan stands in for the whole one, both are run dry. Nothing here needs
torch.
"""

import logging
from collections.abc import Callable, Iterator

from baechi.cost.indexed_graph import seconds_by_device
from baechi.errors import PlacementError, PlanError, ShardedTensorError
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.simulate import simulate
from baechi.split.rewrite import cuts_weights, sizes_of, split
from baechi.split.spec import BatchSpec, LayerSpec

logger = logging.getLogger(__name__)

LEAST_GAIN = 0.03
"""The part of a step that splitting has to save: what it adds to a plan and its run is not for less."""

_MOST_LAYERS = 2
"""Maximum number of layers that are tried, the heaviest first."""

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
    for layer in _heaviest(graph, cluster, whole_s * LEAST_GAIN):
        for spec in _specs(graph, cluster, layer):
            try:
                made = split(graph, {layer: spec})
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


def _specs(graph: LayerGraph, cluster: Cluster, layer: str) -> Iterator[LayerSpec]:
    """Two shards and one a device: where the placer puts them, and on devices from the last to the first.

    A chain's other layers mostly lie on the first device. The shard beside them is issued last then, so what
    the others read is sent, and what they send back is waited for, without waiting for it.
    """
    dim, size = next(iter(sizes_of(graph, layer).items()))
    for number in sorted({2, len(cluster.devices)}):
        yield number
        yield BatchSpec({dim: -(-size // number)}, cluster.names[:number][::-1])


def _heaviest(graph: LayerGraph, cluster: Cluster, least_s: float) -> Iterator[str]:
    """The layers that can be split and would save so many seconds if they took no time on one more device."""
    if len(cluster.devices) < 2:
        return
    seconds: dict[str, float] = {}
    nodes = [name for name, costs in graph.placed_costs() if costs.splits is not None and not costs.unread]
    ways = [
        [min(column) for column in zip(*seconds_by_device(graph, nodes, cluster.devices, way), strict=True)]
        for way in ("forward_s", "backward_s")
    ]
    for name, forward_s, backward_s in zip(nodes, *ways, strict=True):
        module = graph.module_of(name)
        seconds[module] = seconds.get(module, 0.0) + forward_s + backward_s
    share = 1 - 1 / len(cluster.devices)
    heavy = [name for name in seconds if seconds[name] * share >= least_s and cuts_weights(graph, name)]
    heavy.sort(key=lambda module: -seconds[module])
    for module in heavy[:_MOST_LAYERS]:
        try:
            sizes_of(graph, module)
        except PlanError:  # a rule refuses it
            continue
        yield module
