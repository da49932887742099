"""When a layer ends at the soonest: its kernels run in the order in which the host issues them.

    end  >=  when a kernel was issued  +  what that one and all behind it take

For most layers the last kernel decides, or the first (with all of the work behind it). If the host is
slow to issue a layer and a large kernel comes late, that kernel decides.
"""

from collections.abc import Sequence

from baechi.records.layer_costs import LayerCosts
from baechi.records.timeline import Phase

Tail = Sequence[Sequence[float]]
"""The kernels of a layer that may decide, as pairs. First the fraction of the issuing that is over with
a kernel, from the first kernel to the last. Then the fraction of the work that remains at that time."""


def host_s_of(layers: Sequence[LayerCosts], phase: Phase) -> list[float]:
    """By layer, how long the host takes to issue its kernels.

    Args:
        layers: the attributes of each.
        phase: forward or backward.
    """
    if phase == "backward":
        return [float(costs.host_backward_s) for costs in layers]
    return [float(costs.host_forward_s) for costs in layers]


def tails_of(layers: Sequence[LayerCosts], phase: Phase, launch_s: float) -> list[Tail]:
    """By layer, the kernels that may decide; if the graph does not say, all kernels take equally long.

    Args:
        layers: the attributes of each.
        phase: forward or backward.
        launch_s: what it takes the host to issue one kernel.
    """
    tails = [costs.backward_tail if phase == "backward" else costs.tail for costs in layers]
    return [
        tail or [(1.0, min(1.0, launch_s / host_s) if host_s > 0 else 0.0)]
        for tail, host_s in zip(tails, host_s_of(layers, phase), strict=True)
    ]


def last_part(tail: Tail, work_s: float, host_s: float, launch_s: float) -> float:
    """The fraction of a layer's work that remains when its last kernel has been issued.

    It is the fraction that gives the same end as the kernel that decides.

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
