"""When a placer finds no room for a layer: place by memory first, and only then look at time.

Greedy placers fill devices in the order of time, and end with room in all the wrong places (with a
quarter of memory to spare the originals placed 2 to 40 of 100 graphs). In turn:

 1. pack groups by best fit, largest first, and list-schedule them on these devices;
 2. the same devices in topological order, which holds fewer outputs at once;
 3. fill one device after the other in topological order, which sends the fewest.

What none of them places is refused, with the first dead end as the reason.
"""

from collections.abc import Sequence

from baechi.place.filling import Filling
from baechi.place.ledger import Ledger
from baechi.place.listing import Listing
from baechi.place.packing import pack
from baechi.place.refusal import no_room
from baechi.place.task import Task
from baechi.place.walk import walk
from baechi.records import Plan


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
    packed = Ledger(task)
    refused = pack(task, packed)
    if refused is None:
        devices = list(packed.device_of)
        listing = Listing(task, Ledger(task, devices), _settled)
        if listing.fill():
            return _plan(task, placer, stuck, devices, listing.order, "packing")
        packed = Ledger(task, devices)
        refused = walk(task, packed, _settled)
        if refused is None:
            return _plan(task, placer, stuck, devices, range(len(task.indexed)), "packing")
    filled = Ledger(task)
    if walk(task, filled, Filling(task, filled, float("inf")).choose) is None:
        return _plan(task, placer, stuck, filled.device_of, range(len(task.indexed)), "filling")
    raise no_room(task, packed, refused)


def _settled(*_: object) -> int:
    raise AssertionError("every group is placed already")


def _plan(
    task: Task, placer: str, stuck: int, device_of: Sequence[int], order: Sequence[int], way: str
) -> Plan:
    note = f"found no room for {task.indexed.names[stuck]}: placed by {way} instead"
    return task.plan(placer, device_of, order, note)
