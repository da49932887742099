"""The costs of shards and joins, from those of the layer that is split."""

from collections.abc import Mapping, Sequence
from typing import Any

from baechi.records.attributes import scaled
from baechi.records.graph import LayerGraph
from baechi.records.layer_costs import LayerCosts, Splits
from baechi.split.dimension import SplitDimension
from baechi.split.spec import Sharding
from baechi.split.table import rule_named
from baechi.torchlib.shards.table import WEIGHT_OPS

SHARED = (
    "backward_flops", "backward_moved_bytes", "backward_rise_bytes", "flops",
    "forward_temp_bytes", "moved_bytes", "temp_bytes",
)  # fmt: skip
"""Amounts of which each shard has its share."""

_NO_WEIGHTS: Splits = {"shapes": {}, "tied": {}, "refused": ""}

HOST = ("host_forward_s", "host_backward_s", "host_work", "backward_host_work")
"""What the host does for a shard: the same as for the whole."""

_SAME = ("kernels", "backward_kernels", *HOST, "dtype")
_ARITHMETIC = ("arithmetic", "backward_arithmetic")
"""The same of each kernel."""

TIMES = ("forward_s", "backward_s", "spread_s")
"""Seconds, by device, of which each shard has its share."""

_FUNCTIONS = {layer: function for function, layer in WEIGHT_OPS.items()}

_OF_WEIGHTS = (
    "backward_grad_bytes", "buffer_bytes", "dtype", "grad_bytes", "grads", "largest_grad_bytes",
    "param_bytes", "weights",
)  # fmt: skip
_OF_OUTPUT = (
    "held_bytes", "held_until", "lasting_bytes", "lent_bytes", "losses", "output_bytes", "passing_bytes",
    "returned", "upstream_grad_bytes",
)  # fmt: skip


def splits_of(costs: LayerCosts) -> Splits:
    """What a layer says of how it can be split."""
    return costs.splits or _NO_WEIGHTS


def shard_costs(graph: LayerGraph, name: str, sharding: Sharding, number: int) -> dict[str, Any]:
    """The attributes of a shard's node."""
    data, costs, module = graph.nodes[name], graph.costs(name), graph.module_of(name)
    how = rule_named(str(costs.type)).dims[sharding.dimension]
    share = sharding.sizes[number] / sum(sharding.sizes)
    made: dict[str, Any] = {
        "kind": "layer",
        "module": f"{module}[{number}]",
        "type": "Shard",
        "shard": {
            "of": module,
            "dimension": sharding.dimension,
            "sizes": list(sharding.sizes),
            "number": number,
            "cuts": {
                weight: axis for weight, axis in how.cuts.items() if weight in splits_of(costs)["shapes"]
            },
        },
    }
    if how.length:
        units = _units(costs, how, sharding)
        values = {weight: [how.values.get(weight, 1), unit] for weight, unit in units.items()}
        made["shard"] |= {"units": values}
    tied = {weight: list(names) for weight, names in splits_of(costs)["tied"].items() if weight in how.cuts}
    made["shard"] |= {"tied": tied} if tied else {}
    if costs.reads:
        made["shard"] |= {"function": _FUNCTIONS[str(costs.type)]}
    made |= {key: data[key] * share for key in SHARED if data.get(key)}
    made |= {key: _shared(data[key], share) for key in _ARITHMETIC if key in data}
    made |= {key: data[key] for key in _SAME if key in data}
    made |= {key: scaled(data[key], share) for key in TIMES if key in data}
    for key in ("param_bytes", "grad_bytes", "largest_grad_bytes", "backward_grad_bytes"):
        if data.get(key) is not None:
            made[key] = _weight_bytes(
                data[key], splits_of(costs), how.cuts, share, first=_has_rest(how, number)
            )
    output = share if how.join == "cat" else 1
    for key in ("output_bytes", "upstream_grad_bytes"):
        made[key] = graph.amount(name, key) * output
    kept = max(0.0, costs.saved_bytes - costs.lent_bytes)
    if kept:
        made["saved_bytes"] = kept * share
    if not how.cuts and costs.grad_bytes:  # each makes gradients of whole weights, and the last ones go first
        made["backward_rise_bytes"] = made.get("backward_rise_bytes", 0) + (1 - share) * costs.grad_bytes
        if number < len(sharding.sizes) - 1 and costs.backward_kernels:
            sums = len(splits_of(costs)["shapes"])
            made["backward_kernels"] = costs.backward_kernels + sums
            if costs.host_backward_s:
                made["host_backward_s"] = costs.host_backward_s * (1 + sums / costs.backward_kernels)
    if costs.weights is not None:
        made["weights"] = _weights(costs.weights, splits_of(costs), module, how, sharding, number)
    if sharding.devices is not None:
        made["pin"] = sharding.devices[number]
    return made


def _has_rest(how: SplitDimension, number: int) -> bool:
    """Whether a shard has the weights that are not cut. What takes rows has none: a broadcast has them."""
    return number == 0 and bool(how.cuts)


def _shared(kernels: Sequence[Sequence[float]], share: float) -> list[list[float]]:
    return [[amount * share for amount in kernel] for kernel in kernels]


def _weight_bytes(
    whole: float, splits: Mapping[str, Any], cuts: Mapping[str, int], share: float, *, first: bool
) -> float:
    """A shard's share of weights' bytes: of those that are cut its part, of others all or nothing."""
    elements = {weight: _product(shape) for weight, shape in splits["shapes"].items()}
    cut = sum([count for weight, count in elements.items() if weight in cuts])
    cut_bytes = whole * cut / max(1, sum(elements.values()))
    return round(cut_bytes * share + (whole - cut_bytes if first else 0))


def _product(shape: Any) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _weights(
    names: Sequence[str],
    splits: Mapping[str, Any],
    module: str,
    how: SplitDimension,
    sharding: Sharding,
    number: int,
) -> list[str]:
    """The names of what a layer's shard has of its weights: a shard of each value, under each of its names.

    Of what is not cut, and of buffers, the first shard has the whole, and the others have nothing; nor has
    any of those that take rows.
    """
    values: dict[str, int] = {}
    for weight in splits["shapes"]:
        own = (f"{module}.{weight}", *splits["tied"].get(weight, ()))
        values |= dict.fromkeys(own, how.values.get(weight, 1) if weight in how.cuts else 0)
    found: list[str] = []
    for name in names:
        if not values.get(name):  # not cut, or a buffer
            found += [name] if _has_rest(how, number) else []
        else:
            found += [f"{name}[{number + n * len(sharding.sizes)}]" for n in range(values[name])]
    return found


def _units(costs: LayerCosts, how: SplitDimension, sharding: Sharding) -> dict[str, int]:
    """By weight that is cut, how much of its axis belongs to a step of one along the dimension."""
    shapes = splits_of(costs)["shapes"]
    return {
        weight: shapes[weight][axis] // how.values.get(weight, 1) // sum(sharding.sizes)
        for weight, axis in how.cuts.items()
        if weight in shapes
    }


def broadcast_costs(
    graph: LayerGraph, name: str, sharding: Sharding, mover: LayerCosts | None
) -> dict[str, Any]:
    """The attributes of the node that has a layer's weights, and sends them to shards of its rows."""
    data, module = graph.nodes[name], graph.module_of(name)
    made: dict[str, Any] = {"kind": "layer", "type": "Broadcast", "broadcasts": module}
    made["module"] = f"{module}[broadcast]"
    made |= {key: data[key] for key in _OF_WEIGHTS if key in data}
    added_bytes = 3 * (len(sharding.sizes) - 1) * graph.amount(name, "grad_bytes")
    if added_bytes:  # the gradients that come back; shards have the launches of their sums
        made |= {"backward_moved_bytes": added_bytes, "backward_s": _moving_s(mover, added_bytes)}
    return made


def mover_of(graph: LayerGraph) -> LayerCosts | None:
    """The node that reads and writes bytes fastest."""
    nodes = [costs for _, costs in graph.placed_costs() if costs.moved_bytes and costs.forward_s]
    return min(nodes, key=lambda costs: _longest_s(costs) / costs.moved_bytes, default=None)


def _moving_s(mover: LayerCosts | None, moved_bytes: float) -> float | dict[str, float]:
    """Seconds, by device, of reading and writing so many bytes as fast as that node does."""
    return 0.0 if mover is None else scaled(mover.forward_s, moved_bytes / mover.moved_bytes)


def _longest_s(costs: LayerCosts) -> float:
    return max(costs.forward_s.values()) if isinstance(costs.forward_s, Mapping) else costs.forward_s


def broadcast_edge(graph: LayerGraph, name: str) -> dict[str, Any]:
    """What travels from a broadcast to a shard: each weight, when it is asked for."""
    costs = graph.costs(name)
    splits = splits_of(costs)
    sizes = dict(splits.get("bytes", {}))
    edge: dict[str, Any] = {"bytes": sum(sizes.values()), "tensor": "+".join(sizes), "on_demand": True}
    if len(sizes) > 1:
        edge["parts"] = sizes
    if not costs.grad_bytes and not splits["tied"]:  # they are frozen
        edge["no_grad"] = True
    return edge


def join_costs(graph: LayerGraph, name: str, sharding: Sharding, mover: LayerCosts | None) -> dict[str, Any]:
    """The attributes of a join's node."""
    data, costs, module = graph.nodes[name], graph.costs(name), graph.module_of(name)
    adds = rule_named(str(costs.type)).dims[sharding.dimension].join == "sum"
    kernels = max(1, len(sharding.sizes) - 1) if adds else 1
    moved_bytes = costs.output_bytes * (3 * kernels if adds else 2)
    made: dict[str, Any] = {"kind": "layer", "module": f"{module}[join]", "type": "Join", "joins": module}
    made |= {key: data[key] for key in (*_OF_OUTPUT, "dtype") if key in data}
    made |= {"kernels": kernels, "moved_bytes": moved_bytes, "weights": []}
    if "forward_s" in data:
        made["forward_s"] = _moving_s(mover, moved_bytes)
    if "host_forward_s" in data and costs.kernels:
        made["host_forward_s"] = costs.host_forward_s / costs.kernels * kernels
    if graph.training and not adds:
        made |= {"backward_kernels": len(sharding.sizes), "backward_moved_bytes": 2 * costs.output_bytes}
        if "forward_s" in data:
            made["backward_s"] = made["forward_s"]
    if costs.lent_bytes:
        made["saved_bytes"] = min(costs.saved_bytes, costs.lent_bytes)
    if sharding.base is not None:
        made["pin"] = sharding.base
    return made


def part_of_edge(edge: dict[str, Any], share: float, part: str) -> None:
    """Let an edge carry a slice of its tensor."""
    if edge.get("order_only"):
        return
    edge["bytes"] = edge.get("bytes", 0) * share
    edge["tensor"] = f"{edge.get('tensor')}[{part}]"
    edge["on_demand"] = True  # a view, which is sent when it is used
    for key in ("parts", "copies"):
        edge.pop(key, None)
