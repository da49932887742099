"""Plans made by hand for real models: where each layer runs, and in which order."""

from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
from order.unforeseen import capturing
from torch import nn

import baechi


def interleaved(
    graph: baechi.LayerGraph,
    cluster: baechi.Cluster,
    devices: Mapping[str, int | str],
    order: Sequence[str],
) -> baechi.Plan:
    """A plan with the layers in this very order, and glue as early as it can run.

    Args:
        graph: a model's graph.
        cluster: the devices.
        devices: device by module name, as in a device map.
        order: the layers, all of them or the first ones; the others follow in the code's order.
    """
    place = {layer: index for index, layer in enumerate(order)}
    code = {name: len(place) + index for index, name in enumerate(graph.placed())}
    key = {name: place.get(name, code[name] if is_layer(graph, name) else -1) for name in graph.placed()}
    placed = graph.subgraph(graph.placed())
    whole = tuple(nx.lexicographical_topological_sort(placed, key=key.__getitem__))
    assert [name for name in whole if is_layer(graph, name)][: len(order)] == list(order)
    device_of = baechi.Plan.from_device_map(graph, cluster, devices).device_of
    return baechi.Plan(graph, cluster, device_of, whole)


def distribute(
    model: nn.Module,
    inputs: Any,
    devices: Mapping[str, int | str],
    order: Sequence[str],
    *,
    cluster: baechi.Cluster | None = None,
    reorder: Any = True,
    graph: baechi.LayerGraph | None = None,
) -> baechi.Cluster:
    """Distribute a model by such a plan, on two emulated devices unless given; returns them.

    Args:
        model: the model.
        inputs: what it is captured with.
        devices, order: of the plan, see `interleaved`.
        cluster: the devices.
        reorder: as `assign` takes it.
        graph: of a model like this one that was captured before; captured now unless given.
    """
    cluster = baechi.Cluster.virtual(2) if cluster is None else cluster
    graph = captured_graph(model, inputs) if graph is None else graph
    baechi.assign(model, interleaved(graph, cluster, devices, order), reorder=reorder)
    return cluster


def captured_graph(model: nn.Module, inputs: Any) -> baechi.LayerGraph:
    """The layer graph of a model, for every plan of it and of those that are built alike."""
    with capturing():
        return baechi.profile(model, inputs, cluster=baechi.Cluster.virtual(1))


def is_layer(graph: baechi.LayerGraph, name: str) -> bool:
    """Whether a node is a layer that runs: neither glue, nor a weight that nothing reads."""
    data = graph.nodes[name]
    return data["kind"] == "layer" and not data.get("unread", False)


def layers_on(plan: baechi.Plan, device: str) -> list[str]:
    """What a device launches by the plan, in order."""
    return [name for name in plan.order_on(device) if is_layer(plan.graph, name)]
