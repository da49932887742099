"""When the host has issued kernels and transfers: forward by one thread, backward by one per device."""

from collections.abc import Sequence
from dataclasses import dataclass

from baechi.cost.machine import issue_s
from baechi.records.timeline import Phase
from baechi.simulate.parcels import Parcel
from baechi.simulate.stage import Stage


@dataclass(frozen=True)
class Issued:
    """The host's part of a phase.

    Args:
        layers: by layer, when its first kernel has been issued, and its last.
        parcels: by parcel, when its transfer has been asked for.
    """

    layers: list[tuple[float, float]]
    parcels: list[float]


def issue(stage: Stage, phase: Phase, start_s: float, parcels: Sequence[Parcel]) -> Issued:
    """The host's part of a phase.

    A transfer takes the host as long as a kernel. It is asked for right after the last of those that
    give it, an upload right before the first that takes it. In backward a layer is issued when those
    have been that give it gradients.

    Args:
        stage: the plan.
        phase: forward or backward.
        start_s: when the phase begins.
        parcels: what moves in it.

    Returns:
        When everything has been issued; at the beginning, where the graph knows no host times.
    """
    launch_s, host_s = stage.cluster.launch_s, stage.host_s[phase]
    issued = Issued([(start_s, start_s)] * len(host_s), [start_s] * len(parcels))
    if not any(host_s):
        return issued
    backward = phase == "backward"
    order = sorted(range(len(host_s)), key=stage.place.__getitem__, reverse=backward)
    turn = {layer: number for number, layer in enumerate(order)}
    before: list[list[int]] = [[] for _ in host_s]
    after: list[list[int]] = [[] for _ in host_s]
    givers: list[list[int]] = [[] for _ in host_s]
    for number, parcel in enumerate(parcels):
        if parcel.travels and parcel.givers:
            after[max(parcel.givers, key=turn.__getitem__)].append(number)
        elif parcel.travels:
            before[min(parcel.takers, key=turn.__getitem__)].append(number)
        for taker in parcel.takers if backward else ():
            givers[taker].extend(parcel.givers)
    clocks = [start_s] * stage.host
    for layer in order:
        device = stage.device_of[layer] if backward else 0
        now_s = max([clocks[device], *[issued.layers[giver][1] for giver in givers[layer]]])
        for number in before[layer]:
            now_s = issued.parcels[number] = now_s + launch_s
        issued.layers[layer] = issue_s(now_s, host_s[layer], launch_s)
        now_s = issued.layers[layer][1]
        for number in after[layer]:
            now_s = issued.parcels[number] = now_s + launch_s
        clocks[device] = now_s
    return issued
