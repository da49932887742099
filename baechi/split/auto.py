"""Split what fits nowhere, as little as needed.

    no placement ──▶ the layer that the refusal names, else the one    ──▶ placed? ──▶ the plan
                     whose shards are largest, gets more shards               │ no
                            ▲                                                 │
                            └─────────────────────────────────────────────────┘

A layer larger than every device begins with as many shards as its bytes ask for. Where the same is short as
before, the next layer is one that is whole yet. Nothing here needs torch.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from baechi.cost.memory import footprints
from baechi.errors import PlacementError, PlanError, ShardedTensorError, note
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.split.rewrite import cuts_weights, sizes_of, split

Placed = TypeVar("Placed")
logger = logging.getLogger(__name__)

_READ_ELSEWHERE = "other code reads its weight (a layer that shares it, such as nn.Linear, is split with it)"

_SHARD = re.compile(r"(?P<layer>[^\[]*)(\[\d+\])?")
"""A layer, or one of its shards; a join is neither: more shards make it no smaller."""

_STEEPEST = 8
"""A layer gets at most so many times as many shards at once: what a shard needs does not all shrink."""

_ATTEMPTS = 8
"""Maximum number of ways to split that are placed."""


def split_as_needed(
    graphs: Mapping[int, LayerGraph], cluster: Cluster, plan_for: Callable[[Mapping[int, LayerGraph]], Placed]
) -> Placed:
    """Place graphs of one model; if nothing fits, split its largest layers until something does."""
    try:
        return plan_for(graphs)
    except PlacementError as error:
        refused = error
    largest_bytes = max([device.memory_bytes for device in cluster.devices], default=0)
    sizes = dict(_splittable(next(iter(graphs.values()))))
    numbers, whole, same, made = dict[str, int](), dict[str, str](), False, graphs
    for _ in range(_ATTEMPTS if largest_bytes else 0):
        name = _to_blame(next(iter(made.values())), refused.layer, sizes)
        needed_bytes = largest_bytes + min(refused.short_bytes.values(), default=0)
        if name is None:
            shard_bytes = {one: size / numbers.get(one, 1) for one, size in sizes.items()}
            left = [one for one in sizes if not (same and one in numbers)]
            if not left:
                break  # what is too large is no shard
            name = max(left, key=lambda one: shard_bytes[one])
            needed_bytes = int(shard_bytes[name])
        so_far = numbers.get(name, 1)
        numbers[name] = max(so_far + 1, min(-(-so_far * needed_bytes // largest_bytes), _STEEPEST * so_far))
        try:
            made = {number: split(graph, numbers) for number, graph in graphs.items()}
            plan = plan_for(made)
        except PlacementError as error:
            same = (error.layer, error.short_bytes) == (refused.layer, refused.short_bytes)
            refused = error
            continue
        except (ShardedTensorError, ValueError) as error:
            whole[name] = _READ_ELSEWHERE if isinstance(error, ShardedTensorError) else str(error)
            del sizes[name], numbers[name]
            continue
        logger.info("split, since nothing else fits: %s", _listed(numbers))
        return plan
    if numbers:
        note(refused, f"split into shards ({_listed(numbers)}) it does not fit, either")
    for name, why in whole.items():
        note(refused, f"split='auto' leaves {name} whole: {why}")
    raise refused


def _to_blame(graph: LayerGraph, named: str | None, sizes: Mapping[str, float]) -> str | None:
    """The layer that can be split so that what a refusal names needs less: itself, or one that it reads."""
    if named is None or named not in graph.nodes:
        return None
    for node in (named, *graph.predecessors(named)):
        shard = _SHARD.fullmatch(node)
        if shard is not None and shard["layer"] in sizes:
            return shard["layer"]
        if shard is None:
            break
    return None


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join([f"{name} into {number}" for name, number in numbers.items()])


def _splittable(graph: LayerGraph) -> Iterator[tuple[str, float]]:
    """The layers that own weights and can be split, and the bytes that each holds for good."""
    table = footprints(graph)
    for name, costs in graph.placed_costs():
        module = graph.module_of(name)
        if costs.param_bytes and costs.splits is not None and not costs.splits["refused"] and name == module:
            try:
                sizes_of(graph, module)
                split(graph, {module: 2})
            except (PlanError, ValueError):
                continue
            if cuts_weights(graph, module):
                yield module, table[name].permanent_bytes
