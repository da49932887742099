"""Which layers must wait when the code reaches them: three criteria, counted before anything runs.

    code     A  B  C  D  E  F        the host reaches layers in this order
    plan     A  B  E  C  D  F        the device launches them in this one

    at C: E comes first and was not reached: C waits        at E: B was launched: E launches here,
    at D: C waits: D waits                                        then C and D, which waited for it

- `naive`: every layer waits in a thread of its own;
- `global-topo`: a layer may launch at once if everything before it in the plan's order was reached;
- `gpu-topo`: a layer may launch at once if only the order on its own device is asked, and its parents
  in the graph.
"""

from typing import Literal

from baechi.order.launch_order import LaunchOrder

Criterion = Literal["naive", "global-topo", "gpu-topo"]

CRITERIA: tuple[Criterion, ...] = ("naive", "global-topo", "gpu-topo")


def waiting_layers(order: LaunchOrder, criterion: Criterion = "gpu-topo") -> list[str]:
    """The layers that wait when the code runs from its first layer to its last."""
    if criterion not in CRITERIA:
        raise ValueError(f"criterion {criterion!r} is unknown: known are {', '.join(CRITERIA)}")
    if criterion == "naive":
        return list(order.code_order)
    queues = [list(order.order)]
    needs: dict[str, tuple[str, ...]] = dict.fromkeys(order.order, ())
    if criterion == "gpu-topo":
        queues = list(order.queues().values())
        needs = {layer: (*found, *order.first.get(layer, ())) for layer, found in order.parents.items()}
    clear: set[str] = set()  # those that need not wait for any other; they stay so
    reached: set[str] = set()
    waiting = []
    for layer in order.code_order:
        reached.add(layer)
        moved = True
        while moved:  # a newly clear layer may clear one on another device
            moved = False
            for queue in queues:
                while queue and queue[0] in reached and clear.issuperset(needs[queue[0]]):
                    clear.add(queue.pop(0))
                    moved = True
        if layer not in clear:
            waiting.append(layer)
    return waiting
