"""The plan without microbatches, beside a pipeline: what it is compared with in reports.

graph of one microbatch ──its rows times m──▶ graph of the batch ──the same placer──▶ plan
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from baechi.cost.rows import of_rows
from baechi.errors import PlacementError
from baechi.place.fullness import without_limits
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.pipeline import Pipeline
from baechi.records.plan import Plan

PlaceOn = Callable[[LayerGraph, Cluster], Plan]
"""Places a graph on devices for a step without microbatches."""


def with_unsplit(
    made: Pipeline, graphs: Mapping[int, LayerGraph], cluster: Cluster, place_on: PlaceOn
) -> Pipeline:
    """A pipeline that knows the plan without microbatches. That one may be too large for the devices.

    Args:
        made: a pipeline; one that knows it, or has one microbatch, stays as it is.
        graphs: by number of microbatches, the graph of one. The batch's is made from it if it is not there.
        cluster: the devices.
        place_on: places without microbatches.
    """
    if made.microbatches == 1 or made.unsplit is not None:
        return made
    graph = graphs[1] if 1 in graphs else whole(graphs[made.microbatches], made.microbatches)
    try:
        plan = place_on(graph, cluster)
    except PlacementError:
        try:
            plan = replace(place_on(graph, without_limits(cluster)), cluster=cluster)
        except PlacementError:  # so not for want of memory
            return made
    return replace(made, unsplit=plan)


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
