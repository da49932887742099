"""The plan without microbatches, beside a pipeline: what it is compared with in reports.

graph of one microbatch ──its rows times m──▶ graph of the batch ──the same placer──▶ plan
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from baechi.cost.rows import of_rows
from baechi.errors import PlacementError
from baechi.place.fullness import without_limits
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan

PlaceOn = Callable[[LayerGraph, Cluster], Plan]
"""Places a graph on devices for a step without microbatches."""


@dataclass(frozen=True)
class Unsearched:
    """Placing in little time, for a plan that cannot win.

    Args:
        place_on: places without a search.
        least_s: a time that no plan of a graph on some devices can beat.
    """

    place_on: PlaceOn
    least_s: Callable[[LayerGraph, Cluster], float]


def with_unsplit(
    made: Pipeline,
    graphs: Mapping[int, LayerGraph],
    cluster: Cluster,
    place_on: PlaceOn,
    unsearched: Unsearched | None = None,
) -> Pipeline:
    """A pipeline that knows the plan without microbatches. That one may be too large for the devices.

    Args:
        made: a pipeline; one that knows it, or has one microbatch, stays as it is.
        graphs: by number of microbatches, the graph of one. The batch's is made from it if it is not there.
        cluster: the devices.
        place_on: places without microbatches.
        unsearched: how to place if no plan can beat the pipeline; as any other unless given.
    """
    if made.microbatches == 1 or made.unsplit is not None:
        return made
    graph = graphs[1] if 1 in graphs else whole(graphs[made.microbatches], made.microbatches)
    for where in (cluster, without_limits(cluster)):
        try:
            plan = _beaten(made, graph, where, unsearched) or place_on(graph, where)
        except PlacementError:
            continue
        return replace(made, unsplit=replace(plan, cluster=cluster))
    return made  # not for want of memory


def _beaten(
    made: Pipeline, graph: LayerGraph, cluster: Cluster, unsearched: Unsearched | None
) -> Plan | None:
    """The plan without a search; None if a search may find one that beats the pipeline, or one that fits."""
    if unsearched is None or unsearched.least_s(graph, cluster) <= made.timeline.makespan_s:
        return None
    try:
        plan = unsearched.place_on(graph, cluster)
    except PlacementError:
        return None
    return replace(plan, placer=f"{plan.placer}, not searched")


def whole(graph: LayerGraph, microbatches: int) -> LayerGraph:
    """The graph of a batch, from that of one of its microbatches.

    Args:
        graph: the layer graph of one microbatch.
        microbatches: how many there are.
    """
    batch = of_rows(graph, microbatches)
    batch.graph["microbatches"] = 1
    batch.graph.pop("weights_apart", None)
    return batch
