"""The host's instructions in a forward, in order; backward runs them in reverse.

    depart   send a tensor: on the source's send channel, after all kernels issued there so far
    arrive   let all later kernels of the consumer's device wait for the tensor
    launch   issue a layer's kernels
    await    go on when all that was issued to a layer's device has run: the code asks for its values

A tensor sent ahead departs right after its producer. Any other departs right before its first consumer on
the target. It arrives right before that consumer. A model on one device gets all its inputs at the start.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from baechi.simulate.indexed_plan import IndexedPlan
from baechi.simulate.time.transfers import Transfer

Instruction = tuple[Literal["launch", "depart", "arrive", "await"], int]
"""What the host does, and the index of the layer or of the forward transfer."""


def program(
    stage: IndexedPlan, transfers: Sequence[Transfer], awaited: Mapping[int, Sequence[int]]
) -> list[Instruction]:
    """What the host does in a forward."""
    indexed, order = stage.indexed, sorted(range(len(stage.place)), key=stage.place.__getitem__)
    before: defaultdict[int, list[int]] = defaultdict(list)
    after: defaultdict[int, list[int]] = defaultdict(list)
    alone = len(set(stage.device_of)) == 1
    for number, transfer in enumerate(transfers):
        if transfer.travels:
            before[order[0] if alone else transfer.consumers[0]].append(number)
            if transfer.producers and indexed.ahead[transfer.tensor]:
                after[transfer.producers[0]].append(number)
    instructions: list[Instruction] = []
    for turn, layer in enumerate(order):
        if turn in awaited:
            instructions += [("await", maker) for maker in awaited[turn]]
        for number in before.get(layer, ()):
            if not transfers[number].producers or not indexed.ahead[transfers[number].tensor]:
                instructions.append(("depart", number))
            instructions.append(("arrive", number))
        instructions.append(("launch", layer))
        if layer in after:
            instructions += [("depart", number) for number in _as_the_code_reads(after[layer], transfers)]
    return instructions


def _as_the_code_reads(ahead: Sequence[int], transfers: Sequence[Transfer]) -> list[int]:
    """Sort transfers: by the order in which the code reaches each target's consumers, then by need."""
    first: dict[int, int] = {}
    for number in ahead:
        target, reader = transfers[number].target, min(transfers[number].consumers)
        first[target] = min(reader, first.get(target, reader))
    return sorted(ahead, key=lambda number: first[transfers[number].target])
