"""Costs of a model for a batch with more or fewer rows, without another capture."""

from baechi.records.attributes import scaled
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts

_OF_WEIGHTS = {
    "param_bytes", "buffer_bytes", "grad_bytes", "largest_grad_bytes", "backward_grad_bytes",
}  # fmt: skip
"""These do not grow with the batch."""

_GROW = [name for unit in ("bytes", "FLOP") for name in LayerCosts.amounts(unit) if name not in _OF_WEIGHTS]


def of_rows(graph: LayerGraph, share: float) -> LayerGraph:
    """The graph of another batch: seconds, work and bytes grow with the rows; weights and kernels do not.

    Args:
        graph: of a batch.
        share: the rows of the other batch, over those of this one.
    """
    other = LayerGraph.from_networkx(graph)
    for _, costs in other.nodes(data=True):
        for name in (*_GROW, "forward_s", "backward_s"):
            if name in costs:
                costs[name] = scaled(costs[name], share)
    for *_, costs in other.edges(data=True):
        for name in ("bytes", "parts", "copies"):
            if name in costs:
                costs[name] = scaled(costs[name], share)
    return other
