"""Split layers of a graph, and say how classes of layers are split. Nothing here needs torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.records.plan import Plan
from baechi.split.auto import split_as_needed
from baechi.split.dimension import Compute, SplitDimension, SplitRule
from baechi.split.rewrite import split as rewritten
from baechi.split.spec import BatchSpec, DeviceName, Layers, LayerSpec
from baechi.split.table import add_rule, key_of
from baechi.verbs.given import check_graph

if TYPE_CHECKING:
    from torch import nn

Placed = TypeVar("Placed")


def split(
    graph: LayerGraph, name: str, spec: LayerSpec, *, cluster: Cluster | str | None = None
) -> LayerGraph:
    """Split a layer of a graph into shards, before it is placed.

    Layers that share a weight with it are split alike. Each shard is a node like any other, which a placer
    places, and so is the join of their outputs.

    Args:
        graph: the layer graph; it is not changed.
        name: the layer's qualified name.
        spec: a number of shards along the layer's first dimension; a dimension with such a number, as
            `{"out": 4}`; a `BatchSpec`, or a list of them, one inside the other.
        cluster: the devices, where the spec gives them by number.

    Returns:
        A new graph.

    Raises:
        PlanError: there is no such layer, or it cannot be split; the reason is said.
        TypeError: it is not a layer graph.
        ValueError: a malformed spec, or a device that the cluster does not have.
    """
    check_graph(graph)
    return with_layers_split(graph, {name: spec}, None if cluster is None else Cluster.parse(cluster))


def with_layers_split(
    graph: LayerGraph, layers: Mapping[str, LayerSpec], cluster: Cluster | None
) -> LayerGraph:
    """Split layers of a graph."""
    return rewritten(graph, {name: _located(spec, cluster) for name, spec in layers.items()})


def plan_as_split(
    graph: LayerGraph,
    layers: Layers | None,
    cluster: Cluster,
    plan_for: Callable[[LayerGraph], Plan],
) -> Plan:
    """A plan of a graph whose layers are split as a user asked."""
    return placed_as_split({1: graph}, layers, cluster, lambda graphs: plan_for(graphs[1]))


def placed_as_split(
    graphs: Mapping[int, LayerGraph],
    layers: Layers | None,
    cluster: Cluster,
    plan_for: Callable[[Mapping[int, LayerGraph]], Placed],
) -> Placed:
    """Place graphs of one model whose layers are split as a user asked."""
    if layers is None:
        return plan_for(graphs)
    if isinstance(layers, Mapping):
        return plan_for(
            {number: with_layers_split(graph, layers, cluster) for number, graph in graphs.items()}
        )
    return split_as_needed(graphs, cluster, plan_for)


def _located(spec: LayerSpec, cluster: Cluster | None) -> LayerSpec:
    """A spec with names of devices in place of their numbers."""
    if isinstance(spec, BatchSpec):
        matrix = spec.device_matrix
        named = None if matrix is None else [_name_of(device, cluster) for device in matrix]
        base = None if spec.base_device is None else _name_of(spec.base_device, cluster)
        return replace(spec, device_matrix=named, base_device=base)
    if isinstance(spec, (list, tuple)):
        return [_one(_located(one, cluster)) for one in spec]
    return spec


def _one(spec: LayerSpec) -> BatchSpec:
    if not isinstance(spec, BatchSpec):
        raise ValueError(f"{spec!r} is in a list of specs: each of them has to be a BatchSpec")
    return spec


def _name_of(device: DeviceName, cluster: Cluster | None) -> str:
    if cluster is None:
        if isinstance(device, int):
            raise ValueError(f"device {device} is a number in a cluster: give cluster=, or its name")
        return device
    names = cluster.names
    if isinstance(device, int) and 0 <= device < len(names):
        return names[device]
    if device not in names:
        raise ValueError(f"{device!r} is no device: the cluster has {', '.join(names)}")
    return str(device)


def register_split(
    kind: "type[nn.Module]",
    dims: Mapping[str, SplitDimension],
    compute: Compute,
    *,
    weights: Sequence[str],
    options: Sequence[str] = (),
    refuses: Callable[[Any], str] = lambda layer: "",
) -> None:
    """Say how layers of a class are split; where the class has a rule already, this one replaces it.

    Args:
        kind: a class of layers that take one tensor and return one. Subclasses need rules of their own.
        dims: by name, along what they can be split; the first one is taken where none is named.
        compute: `compute(options, dimension, shard, x, *weights)`, a shard's output. `shard` says which part
            of the dimension it is (`start`, `stop`, `size`). It must be a function of a module, so that
            models can be pickled.
        weights: names of their parameters, in the order in which `compute` takes them.
        options: names of attributes that `compute` needs.
        refuses: from a layer to why it cannot be split; empty if it can.

    Raises:
        ValueError: the dimensions do not go with the weights.
    """
    add_rule(key_of(kind), SplitRule(dict(dims), tuple(weights), compute, tuple(options), refuses))
