"""What a plan makes baechi's own runtime take of the host (`HostCosts`), before it runs.

Charged beside `launch_s`, in the program of the host:

    forward   a transfer: before it is asked for     a call: before its first kernel
    backward  a transfer's two nodes: before the gradient is sent, and where it is received

A model on one device has no wrapped layers. What comes before the first kernel or transfer of a phase is
no part of the step, as with `launch_s`.
"""

from dataclasses import dataclass

from baechi.cost.indexed_graph import FROM_HOST, IndexedGraph
from baechi.records.cluster import Cluster
from baechi.records.device import HostCosts
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts


@dataclass(frozen=True)
class OwnWork:
    """Seconds of host time that the runtime takes for each thing that a plan makes it do.

    Args:
        call_s: by layer, for its call, if the model is on several devices.
        lane_s: by layer, more for its call in a microbatch.
        waiting_s: more for a call that waits.
        transfer_s: by tensor, for a transfer of it in forward.
        fetch_s: by tensor that the host fetches, for its transfer.
        node_s: for each of the two backward nodes of a transfer.
    """

    call_s: list[float]
    lane_s: list[float]
    waiting_s: float
    transfer_s: list[float]
    fetch_s: list[float]
    node_s: float

    @classmethod
    def of(cls, graph: LayerGraph, indexed: IndexedGraph, cluster: Cluster) -> "OwnWork":
        """Look up a graph's costs on a cluster; all are 0 if either says nothing of the host."""
        knows_host = any([layer.host_forward_s for layer in indexed.costs])
        costs = host_costs_of(graph, cluster) if knows_host else HostCosts()
        training = graph.training
        trained = [training and _trained(layer) for layer in indexed.costs]
        ways_s = costs.transfer_s, costs.gradient_transfer_s
        return cls(
            [_call_s(layer, costs.layer_call_s, costs.functional_op_s) for layer in indexed.costs],
            [_call_s(layer, costs.lane_layer_s, costs.lane_op_s) for layer in indexed.costs],
            costs.waiting_layer_s,
            [
                ways_s[maker != FROM_HOST and (trained[maker] or (training and bool(graded)))]
                for maker, graded in zip(indexed.source, indexed.graded, strict=True)
            ],
            [ways_s[tensor.is_loss or trained[tensor.maker]] for tensor in indexed.fetched],
            costs.backward_node_s,
        )


def host_costs_of(graph: LayerGraph, cluster: Cluster) -> HostCosts:
    """What a cluster's host takes for steps of a graph's model, which may run as programs; 0 if unsaid."""
    host = cluster.host or HostCosts()
    return host.of_programs() if graph.graph.get("programs") else host


def _trained(layer: LayerCosts) -> bool:
    """Whether its output requires a gradient: a sum has none to compute, but gets one."""
    return layer.host_backward_s > 0 or layer.upstream_grad_bytes > 0


def _call_s(layer: LayerCosts, layer_s: float, functional_op_s: float) -> float:
    if layer.kind == "layer":
        return layer_s
    return functional_op_s if layer.host_forward_s and not layer.on_host else 0.0
