"""The fallback when a layer fits nowhere: choose devices by memory first, and only then look at time.

Greedy placers fill devices in order of time, so the free memory ends in the wrong places. (With a
quarter of memory to spare the paper's placers placed 2 to 40 of 100 graphs.) Three ways are tried in turn:

1. Pack groups by best fit, largest first, and list-schedule them on these devices. If that fails, run
   them there in topological order, which holds fewer outputs at once.
2. Fill one device after the other in topological order, which sends the fewest tensors. The first cap is
   a part of the equal share: the rest is for received copies and leftover groups. Higher caps follow,
   since it depends on the cuts which cap fits.
3. Put everything on one device, which sends nothing.

If all fail, the model is refused: with a short proof if there is one, else with the layer at which the
packing failed. A caller with a simulator goes on with `tight`.
"""

from collections.abc import Sequence

from baechi.place.ledger import Ledger, open_ledger
from baechi.place.listing.fill import Filling
from baechi.place.listing.pack import pack
from baechi.place.listing.start_earliest import Listing
from baechi.place.listing.walk import walk
from baechi.place.placers.single import fastest_that_holds_all
from baechi.place.problem import Problem
from baechi.place.tight.proof import prove
from baechi.place.tight.refusal import no_room
from baechi.records import Plan

_FULLNESS = (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, float("inf"))

_Found = tuple[Sequence[int], Sequence[int]] | None
"""Device by group and the order of the layers; None if they do not fit."""


def rescue(problem: Problem, placer: str, stuck: int) -> Plan:
    """Find a plan that fits where a placer found none."""
    for name, way in (("packing", _packed), ("filling", _filled), ("one device", _whole)):
        found = way(problem)
        if found is not None:
            note = f"found no room for {problem.indexed.names[stuck]}: placed by {name} instead"
            return problem.plan(placer, *found, note)
    prove(problem)
    raise no_room(problem, *_dead_end(problem))


def _packed(problem: Problem) -> _Found:
    packed = open_ledger(problem)
    if pack(problem, packed) is not None:
        return None
    listing = Listing(problem, open_ledger(problem, packed.device_of), _decided)
    if listing.fill():
        return packed.device_of, listing.order
    walked = walk(problem, open_ledger(problem, packed.device_of), _decided)
    return (packed.device_of, range(len(problem.indexed))) if walked is None else None


def _filled(problem: Problem) -> _Found:
    share = sum([group.total_bytes for group in problem.group_bytes]) / max(1, sum(problem.memory_bytes))
    for fullness in _FULLNESS:
        ledger = open_ledger(problem)
        caps = [fullness * share * memory for memory in problem.memory_bytes]
        if walk(problem, ledger, Filling(problem, ledger, caps).choose) is None:
            return ledger.device_of, range(len(problem.indexed))
    return None


def _whole(problem: Problem) -> _Found:
    device = fastest_that_holds_all(problem)
    return (
        ([device] * len(problem.indexed.members), range(len(problem.indexed))) if device is not None else None
    )


def _dead_end(problem: Problem) -> tuple[Ledger, int]:
    """The ledger of the packing when it failed, and the layer that did not fit."""
    ledger = open_ledger(problem)
    layer = pack(problem, ledger)
    if layer is None:
        ledger = open_ledger(problem, ledger.device_of)
        layer = walk(problem, ledger, _decided)
    assert layer is not None, "the packing had room for all"
    return ledger, layer


def _decided(*_: object) -> int:
    raise AssertionError("every group is placed already")
