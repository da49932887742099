"""What the host does in a forward, one after the other; backward does it the other way around.

    depart   a tensor is sent: on the source's tx, after all that the source was given to compute so far
    arrive   what its reader's device is given to compute from now on waits for it
    launch   a layer's kernels

Sent ahead, a tensor departs right after its maker, else right before its first reader there; it arrives
right before its first reader. A model on one device gets all its inputs at the beginning.
"""

from collections.abc import Sequence
from typing import Literal

from baechi.simulate.stage import Stage
from baechi.simulate.time.parcels import Parcel

Instruction = tuple[Literal["launch", "depart", "arrive"], int]
"""What is done with a layer, or with a parcel of the forward."""


def program(stage: Stage, parcels: Sequence[Parcel]) -> list[Instruction]:
    """What the host does in a forward.

    Args:
        stage: the plan, in the order of launches.
        parcels: what moves in forward.
    """
    indexed, place = stage.indexed, stage.place
    before: list[list[int]] = [[] for _ in place]
    after: list[list[int]] = [[] for _ in place]
    first = min(range(len(place)), key=place.__getitem__, default=0)
    alone = len(set(stage.device_of)) == 1
    for number, parcel in enumerate(parcels):
        if parcel.travels:
            before[first if alone else parcel.takers[0]].append(number)
            if parcel.givers and indexed.ahead[parcel.tensor]:
                after[parcel.givers[0]].append(number)
    instructions: list[Instruction] = []
    for layer in sorted(range(len(place)), key=place.__getitem__):
        for number in before[layer]:
            if not parcels[number].givers or not indexed.ahead[parcels[number].tensor]:
                instructions.append(("depart", number))
            instructions.append(("arrive", number))
        instructions.append(("launch", layer))
        instructions += [("depart", number) for number in _as_the_code_reads(after[layer], parcels)]
    return instructions


def _as_the_code_reads(ahead: Sequence[int], parcels: Sequence[Parcel]) -> list[int]:
    """To the devices in the order in which the code comes to the readers there, to each as it needs them."""
    first: dict[int, int] = {}
    for number in ahead:
        target, reader = parcels[number].target, min(parcels[number].takers)
        first[target] = min(reader, first.get(target, reader))
    return sorted(ahead, key=lambda number: first[parcels[number].target])
