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

_OF_OUTPUT = (
    "held_bytes", "held_until", "lasting_bytes", "lent_bytes", "losses", "output_bytes", "passing_bytes",
    "returned", "upstream_grad_bytes",
)  # fmt: skip


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
                weight: axis
                for weight, axis in how.cuts.items()
                if weight in (costs.splits or _NO_WEIGHTS)["shapes"]
            },
        },
    }
    if how.length:
        units = _units(costs, how, sharding)
        values = {weight: [how.values.get(weight, 1), unit] for weight, unit in units.items()}
        made["shard"] |= {"units": values}
    tied = {
        weight: list(names)
        for weight, names in (costs.splits or _NO_WEIGHTS)["tied"].items()
        if weight in how.cuts
    }
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
                data[key], costs.splits or _NO_WEIGHTS, how.cuts, share, first=number == 0
            )
    output = share if how.join == "cat" else 1
    for key in ("output_bytes", "upstream_grad_bytes"):
        made[key] = graph.amount(name, key) * output
    kept = max(0.0, costs.saved_bytes - costs.lent_bytes)
    if kept:
        made["saved_bytes"] = kept * share
    if costs.weights is not None:
        made["weights"] = _weights(costs.weights, costs.splits or _NO_WEIGHTS, module, how, sharding, number)
    if sharding.devices is not None:
        made["pin"] = sharding.devices[number]
    return made


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

    Of what is not cut, and of buffers, the first shard has the whole, and the others have nothing.
    """
    values: dict[str, int] = {}
    for weight in splits["shapes"]:
        own = (f"{module}.{weight}", *splits["tied"].get(weight, ()))
        values |= dict.fromkeys(own, how.values.get(weight, 1) if weight in how.cuts else 0)
    found: list[str] = []
    for name in names:
        if not values.get(name):  # not cut, or a buffer
            found += [name] if number == 0 else []
        else:
            found += [f"{name}[{number + n * len(sharding.sizes)}]" for n in range(values[name])]
    return found


def _units(costs: LayerCosts, how: SplitDimension, sharding: Sharding) -> dict[str, int]:
    """By weight that is cut, how much of its axis belongs to a step of one along the dimension."""
    shapes = (costs.splits or _NO_WEIGHTS)["shapes"]
    return {
        weight: shapes[weight][axis] // how.values.get(weight, 1) // sum(sharding.sizes)
        for weight, axis in how.cuts.items()
        if weight in shapes
    }


def join_costs(graph: LayerGraph, name: str, sharding: Sharding) -> dict[str, Any]:
    """The attributes of a join's node."""
    data, costs, module = graph.nodes[name], graph.costs(name), graph.module_of(name)
    adds = rule_named(str(costs.type)).dims[sharding.dimension].join == "sum"
    kernels = max(1, len(sharding.sizes) - 1) if adds else 1
    moved_bytes = costs.output_bytes * (3 * kernels if adds else 2)
    part = moved_bytes / costs.moved_bytes if costs.moved_bytes else 0.0
    made: dict[str, Any] = {"kind": "layer", "module": f"{module}[join]", "type": "Join", "joins": module}
    made |= {key: data[key] for key in (*_OF_OUTPUT, "dtype") if key in data}
    made |= {"kernels": kernels, "moved_bytes": moved_bytes, "weights": []}
    if "forward_s" in data:
        made["forward_s"] = scaled(data["forward_s"], min(1.0, part))
    if "host_forward_s" in data and costs.kernels:
        made["host_forward_s"] = costs.host_forward_s / costs.kernels * kernels
    if graph.training and not adds:
        made |= {"backward_kernels": len(sharding.sizes), "backward_moved_bytes": 2 * costs.output_bytes}
        if "forward_s" in data:
            made["backward_s"] = scaled(data["forward_s"], min(1.0, part))
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
