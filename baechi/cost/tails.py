"""When a layer ends at the soonest: its kernels run in the order in which the host issues them.

    end  >=  when a kernel was issued  +  what that one and all behind it take

For most layers the last kernel decides, or the first (all of the work); where a large one comes late in
a layer that the host is slow to issue, that one.
"""

from collections.abc import Sequence

from baechi.records import LayerGraph
from baechi.records.timeline import Phase

Tail = Sequence[Sequence[float]]
"""The kernels of a layer that may decide: pairs of the part of the issuing that is over with them, from
the first kernel to the last, and of the part of the work that is left then."""


def tails_of(graph: LayerGraph, names: Sequence[str], phase: Phase, launch_s: float) -> list[Tail]:
    """By layer; where nobody says, all its kernels take equally long.

    Args:
        graph: the layer graph.
        names: layers.
        phase: forward or backward.
        launch_s: what it takes the host to issue one kernel.
    """
    attribute = "backward_tail" if phase == "backward" else "tail"
    found: list[Tail] = []
    for name in names:
        host_s = graph.amount(name, f"host_{phase}_s")
        share = min(1.0, launch_s / host_s) if host_s > 0 else 0.0
        found.append(graph.nodes[name].get(attribute) or [(1.0, share)])
    return found


def last_part(tail: Tail, work_s: float, host_s: float, launch_s: float) -> float:
    """The part of a layer's work that is left, as it were, when its last kernel has been issued.

    Args:
        tail: of the layer.
        work_s: how long it runs.
        host_s: what it takes the host to issue it.
        launch_s: what it takes the host to issue one kernel.
    """
    if not work_s:
        return 0.0
    between_s = max(0.0, host_s - launch_s)  # from the first kernel to the last
    return max([(part - 1) * between_s / work_s + share for part, share in tail])
