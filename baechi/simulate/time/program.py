"""What the host does in a forward, one after the other; backward does it the other way around.

    depart   a tensor is sent: on the source's tx, after all that the source was given to compute so far
    arrive   what its reader's device is given to compute from now on waits for it
    launch   a layer's kernels

Sent ahead, a tensor departs right after its maker, else right before its first reader there; it arrives
right before its first reader. A model on one device gets all its inputs at the beginning.
"""

from collections.abc import Sequence
from typing import Literal

from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.time.transfers import Transfer

Instruction = tuple[Literal["launch", "depart", "arrive"], int]
"""What is done with a layer, or with a transfer of the forward."""


def program(stage: IndexedPlan, transfers: Sequence[Transfer]) -> list[Instruction]:
    """What the host does in a forward.

    Args:
        stage: the plan, in the order of launches.
        transfers: what moves in forward.
    """
    indexed, place = stage.indexed, stage.place
    before: list[list[int]] = [[] for _ in place]
    after: list[list[int]] = [[] for _ in place]
    first = min(range(len(place)), key=place.__getitem__, default=0)
    alone = len(set(stage.device_of)) == 1
    for number, transfer in enumerate(transfers):
        if transfer.travels:
            before[first if alone else transfer.consumers[0]].append(number)
            if transfer.producers and indexed.ahead[transfer.tensor]:
                after[transfer.producers[0]].append(number)
    instructions: list[Instruction] = []
    for layer in sorted(range(len(place)), key=place.__getitem__):
        for number in before[layer]:
            if not transfers[number].producers or not indexed.ahead[transfers[number].tensor]:
                instructions.append(("depart", number))
            instructions.append(("arrive", number))
        instructions.append(("launch", layer))
        instructions += [("depart", number) for number in _as_the_code_reads(after[layer], transfers)]
    return instructions


def _as_the_code_reads(ahead: Sequence[int], transfers: Sequence[Transfer]) -> list[int]:
    """To the devices in the order in which the code comes to the readers there, to each as it needs them."""
    first: dict[int, int] = {}
    for number in ahead:
        target, reader = transfers[number].target, min(transfers[number].consumers)
        first[target] = min(reader, first.get(target, reader))
    return sorted(ahead, key=lambda number: first[transfers[number].target])
