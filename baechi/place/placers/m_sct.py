"""m-SCT: list scheduling in which a device may wait for the favourite child of what it ran last.

Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC 2020, after SCT: Hanen
and Munier, ETFA 1995. In its steps:

1. the linear program for unlimited devices, and its rounding: `favourites`;
2. list scheduling on the devices there are: `listing`, as m-ETF, with
3. devices that are awake for a favourite child, and urgent layers: `waiting_devices`;
4. memory: a layer skips devices where it does not fit; a group is placed as a whole.

It is best where transfers take no longer than layers (the assumption of SCT's bound).
"""

from baechi.gc_pause import uncollected
from baechi.place.ledger import open_ledger
from baechi.place.listing.favourites import THRESHOLD, favourites
from baechi.place.listing.start_earliest import Listing
from baechi.place.listing.waiting_devices import Awake
from baechi.place.placers.m_etf import ends_group_first
from baechi.place.placers.rescue import rescue
from baechi.place.problem import Problem
from baechi.records import Cluster, LayerGraph, Plan


@uncollected
def m_sct(
    graph: LayerGraph, cluster: Cluster, *, optimizer: str | None = None, threshold: float = THRESHOLD
) -> Plan:
    """Place by m-SCT; see `Placer`."""
    problem = Problem(graph, cluster, optimizer)
    ledger = open_ledger(problem)
    found = favourites(problem, threshold)
    listing = Listing(problem, ledger, ends_group_first, Awake(found.child_of, len(cluster)))
    if not listing.fill():
        ran = set(listing.order)
        stuck = next(layer for layer in range(len(problem.indexed)) if layer not in ran)
        return rescue(problem, "m-sct", stuck)
    note = f"favourite children found in {found.programs} programs, since one would take too long"
    return problem.plan("m-sct", ledger.device_of, listing.order, note if found.programs > 1 else "")
