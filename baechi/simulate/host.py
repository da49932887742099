"""When the host has issued each layer's kernels: forward by one thread, backward by one per device."""

from collections.abc import Sequence

from baechi.cost.machine import issue_s
from baechi.records.timeline import Phase
from baechi.simulate.parcels import Parcel
from baechi.simulate.stage import Stage


def issue(stage: Stage, phase: Phase, start_s: float, parcels: Sequence[Parcel]) -> list[tuple[float, float]]:
    """The host's part of a phase.

    Args:
        stage: the plan.
        phase: forward or backward.
        start_s: when the phase begins.
        parcels: what moves in it.

    Returns:
        By layer, when its first kernel has been issued, and its last. In backward a layer is issued
        when those have been that give it gradients.
    """
    launch_s, host_s = stage.cluster.launch_s, stage.host_s[phase]
    backward = phase == "backward"
    issued = [(start_s, start_s)] * len(host_s)
    if not any(host_s):
        return issued
    order = sorted(range(len(host_s)), key=stage.place.__getitem__, reverse=backward)
    givers: list[list[int]] = [[] for _ in host_s]
    for parcel in parcels if backward else ():
        for taker in parcel.takers:
            givers[taker].extend(parcel.givers)
    clocks = [start_s] * stage.host
    for layer in order:
        device = stage.device_of[layer] if backward else 0
        now_s = max([clocks[device], *[issued[giver][1] for giver in givers[layer]]])
        issued[layer] = issue_s(now_s, host_s[layer], launch_s)
        clocks[device] = issued[layer][1]
    return issued
