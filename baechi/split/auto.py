"""Split what fits nowhere, as little as needed.

    no placement ──▶ the layer whose tiles are largest gets one tile more ──▶ placed? ──▶ the plan
                            ▲                                                   │ no
                            └───────────────────────────────────────────────────┘

A layer larger than every device begins with as many tiles as its bytes ask for. Nothing here needs torch.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from baechi.cost.memory import footprints
from baechi.errors import PlacementError, PlanError, SplitTensorError, note
from baechi.records.cluster import Cluster
from baechi.records.graph import LayerGraph
from baechi.split.rewrite import cuts_weights, sizes_of, split

Placed = TypeVar("Placed")
logger = logging.getLogger(__name__)

_READ_ELSEWHERE = "other code reads its weight (a layer that shares it, such as nn.Linear, is split with it)"

_ATTEMPTS = 6
"""Maximum number of ways to split that are placed."""


def split_as_needed(
    graphs: Mapping[int, LayerGraph], cluster: Cluster, plan_for: Callable[[Mapping[int, LayerGraph]], Placed]
) -> Placed:
    """Place graphs of one model; if nothing fits, split its largest layers until something does.

    Args:
        graphs: layer graphs, by number of microbatches.
        cluster: the devices.
        plan_for: places the graphs, or raises `PlacementError`.

    Returns:
        What was placed, of the graphs themselves if they can be.

    Raises:
        PlacementError: nothing fits, however the layers are split.
    """
    try:
        return plan_for(graphs)
    except PlacementError as error:
        refused = error
    largest_bytes = max([device.memory_bytes for device in cluster.devices], default=0)
    sizes = dict(_splittable(next(iter(graphs.values()))))
    numbers, whole = dict[str, int](), dict[str, str]()
    for _ in range(_ATTEMPTS if largest_bytes else 0):
        tile_bytes = {name: size / numbers.get(name, 1) for name, size in sizes.items()}
        name = max(tile_bytes, key=lambda layer: tile_bytes[layer], default=None)
        if name is None:
            break
        least = -(-int(sizes[name]) // largest_bytes)
        numbers[name] = numbers[name] + 1 if name in numbers else max(2, least)
        try:
            plan = plan_for({number: split(graph, numbers) for number, graph in graphs.items()})
        except PlacementError as error:
            same = (error.layer, error.short_bytes) == (refused.layer, refused.short_bytes)
            refused = error
            if same:
                break  # what is too large is no tile
            continue
        except (SplitTensorError, ValueError) as error:
            whole[name] = _READ_ELSEWHERE if isinstance(error, SplitTensorError) else str(error)
            del sizes[name], numbers[name]
            continue
        logger.info("split, since nothing else fits: %s", _listed(numbers))
        return plan
    if numbers:
        note(refused, f"split into tiles ({_listed(numbers)}) it does not fit, either")
    for name, why in whole.items():
        note(refused, f"split='auto' leaves {name} whole: {why}")
    raise refused


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
