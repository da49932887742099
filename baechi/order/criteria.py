"""Which layers must wait when the code reaches them: three criteria, counted before anything runs.

After the design document, section 1.3.2:

- `naive`: every layer waits in a thread of its own;
- `global-topo`: a layer may launch at once if everything before it in the plan's order was reached;
- `gpu-topo`: a layer may launch at once if `isNotWaiting` holds for it: only the order on its own
  device counts, and its parents in the graph.
"""

from typing import Literal

from baechi.order.launch_order import LaunchOrder
from baechi.order.progress import Progress

Criterion = Literal["naive", "global-topo", "gpu-topo"]

CRITERIA: tuple[Criterion, ...] = ("naive", "global-topo", "gpu-topo")


def waiting_layers(order: LaunchOrder, criterion: Criterion = "gpu-topo") -> list[str]:
    """The layers that wait when the code runs from its first layer to its last.

    Args:
        order: the plan's order, and the code's.
        criterion: which rule decides.

    Returns:
        In code order. With threads, each of them takes a thread.

    Raises:
        ValueError: an unknown criterion.
    """
    if criterion == "naive":
        return list(order.code_order)
    if criterion == "global-topo":
        return _global(order)
    if criterion == "gpu-topo":
        progress, waiting = Progress(order), []
        for layer in order.code_order:
            if not progress.reach(layer):
                waiting.append(layer)
        return waiting
    raise ValueError(f"criterion {criterion!r} is unknown: known are {', '.join(CRITERIA)}")


def _global(order: LaunchOrder) -> list[str]:
    place = {layer: index for index, layer in enumerate(order.order)}
    reached: set[str] = set()
    complete = 0  # all of the plan's order up to here was reached
    waiting = []
    for layer in order.code_order:
        reached.add(layer)
        while complete < len(order.order) and order.order[complete] in reached:
            complete += 1
        if place[layer] >= complete:
            waiting.append(layer)
    return waiting
