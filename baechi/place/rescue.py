"""When a placer finds no room for a layer: place by memory first, and only then look at time.

Greedy placers fill devices in the order of time, and end with room in all the wrong places (with a
quarter of memory to spare the originals placed 2 to 40 of 100 graphs). In turn:

 1. pack groups by best fit, largest first, and list-schedule them on these devices;
 2. the same devices in topological order, which holds fewer outputs at once;
 3. fill one device after the other in topological order, which sends the fewest: first all to an
    equal part, which leaves room for what they receive, then fuller and fuller;
 4. one device for everything, which sends nothing.

What none of them places is refused, with the first dead end as the reason.
"""

from collections.abc import Sequence

from baechi.place.books import open_ledger
from baechi.place.filling import Filling
from baechi.place.listing import Listing
from baechi.place.packing import pack
from baechi.place.refusal import no_room
from baechi.place.single import fastest_that_holds_all
from baechi.place.task import Task
from baechi.place.walk import walk
from baechi.records import Plan

_FULLNESS = (1.0, 1.1, 1.25, 1.5, float("inf"))


def rescue(task: Task, placer: str, stuck: int) -> Plan:
    """Find a plan that fits where a placer found none.

    Args:
        task: what is to be placed.
        placer: the name of the placer.
        stuck: the layer that found no room.

    Returns:
        A plan; its only candidate says what happened.

    Raises:
        PlacementError: no way places it.
    """
    packed = open_ledger(task)
    refused = pack(task, packed)
    if refused is None:
        devices = list(packed.device_of)
        listing = Listing(task, open_ledger(task, devices), _settled)
        if listing.fill():
            return _plan(task, placer, stuck, devices, listing.order, "packing")
        packed = open_ledger(task, devices)
        refused = walk(task, packed, _settled)
        if refused is None:
            return _plan(task, placer, stuck, devices, range(len(task.indexed)), "packing")
    for fullness in _FULLNESS:
        filled = open_ledger(task)
        if walk(task, filled, Filling(task, filled, _caps_bytes(task, fullness)).choose) is None:
            return _plan(task, placer, stuck, filled.device_of, range(len(task.indexed)), "filling")
    whole = fastest_that_holds_all(task)
    if whole is not None:
        devices = [whole] * len(task.indexed.members)
        return _plan(task, placer, stuck, devices, range(len(task.indexed)), "one device")
    raise no_room(task, packed, refused)


def _caps_bytes(task: Task, fullness: float) -> list[float]:
    """All groups shared out in proportion to the devices' memory, and the largest on top."""
    sizes = [group.total_bytes for group in task.group_bytes]
    share = fullness * sum(sizes) / max(1, sum(task.memory_bytes))
    return [share * memory + max(sizes, default=0) for memory in task.memory_bytes]


def _settled(*_: object) -> int:
    raise AssertionError("every group is placed already")


def _plan(
    task: Task, placer: str, stuck: int, device_of: Sequence[int], order: Sequence[int], way: str
) -> Plan:
    note = f"found no room for {task.indexed.names[stuck]}: placed by {way} instead"
    return task.plan(placer, device_of, order, note)
